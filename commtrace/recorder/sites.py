"""What many events have in common, written once: each gets a number when it comes up first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Any

_MAX_KNOWN = 1 << 16


class Sites:
    """The sites of one table: numbers by key, and the rows that are not written yet.

    Any thread may look up and add. One that was forgotten, so that memory stays bounded, is given
    another number when it comes up again.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._held: list[Any] = []
        self._num_known = 0
        self._lock = threading.Lock()
        self.new: deque[tuple[Any, ...]] = deque()
        self.number_of = self._numbers.get

    def add(self, key: Hashable, row: tuple[Any, ...], held: Any = None) -> int:
        """The number of a site that has none yet; `held` lives on, where the key is its identity.

        The row is there before the number is, which may be written as soon as it is known.
        """
        with self._lock:
            if len(self._numbers) >= _MAX_KNOWN:
                self._numbers.clear()
                self._held.clear()
            number = self._num_known
            self._num_known += 1
            self.new.append(row)
            self._held.append(held)
            self._numbers[key] = number
        return number
