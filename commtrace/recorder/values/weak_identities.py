"""Set of objects by identity; each leaves when it is gone."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any


class WeakIdentities:
    """Objects that were added and still exist; they need no hash, and none of their methods."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, each: Any) -> bool:
        known = self._known.get(id(each))
        return known is not None and known() is each

    def add(self, each: Any) -> bool:
        """Add an object; return whether it is new."""
        if each in self:
            return False
        forget = partial(_forget, weakref.ref(self), id(each))
        self._known[id(each)] = weakref.ref(each, forget)
        return True

    def clear(self) -> None:
        """Remove all objects."""
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)


def _forget(owner: weakref.ref[WeakIdentities], number: int, gone: weakref.ref[Any]) -> None:
    objects = owner()
    # Another object may have the number by now.
    if objects is not None and objects._known.get(number) is gone:
        del objects._known[number]
