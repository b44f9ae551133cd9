"""Functions and methods of others that are replaced while recording, and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replaced:
    """Replaced functions of a part of the recorder."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, str, Any, Any, bool]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def replace(self, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        """Replace an attribute by what `made` returns for it; nothing if there is none."""
        # A method of C++ is bound to an object only as it is in the dictionary of its class.
        is_own = name in vars(owner)
        original = vars(owner)[name] if is_own else getattr(owner, name, None)
        if original is None:
            return
        ours = made(original)
        self._found.append((owner, name, original, ours, is_own))
        setattr(owner, name, ours)

    def has(self, function: Any) -> bool:
        """Return whether a function is a replacement of another."""
        return any(function is ours for _, _, _, ours, _ in self._found)

    def restore(self) -> None:
        """Restore all, except those that someone has replaced again since."""
        while self._found:
            owner, name, original, ours, is_own = self._found.pop()
            if vars(owner).get(name) is not ours:
                continue
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
