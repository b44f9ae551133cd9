"""Call sites: values that many events share, written once and numbered on first occurrence."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Any

_MAX_KNOWN = 1 << 16


class CallSites:
    """Call sites of a table: numbers by key, and the rows not yet written.

    Any thread may look up and add. A call site that was evicted to bound memory gets another number
    when it occurs again.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._kept_alive: list[Any] = []
        self._num_known = 0
        self._lock = threading.Lock()
        self.new: deque[tuple[Any, ...]] = deque()
        self.number_of = self._numbers.get

    def add(self, key: Hashable, row: tuple[Any, ...], keep_alive: Any = None) -> int:
        """Number a new call site; `keep_alive` must live on, as the key contains its identity.

        The row is appended before the number is published, since the number may be written at once.
        """
        with self._lock:
            if len(self._numbers) >= _MAX_KNOWN:
                # Cleared in place, since `number_of` is bound to this dictionary.
                self._numbers.clear()
                self._kept_alive.clear()
            number = self._num_known
            self._num_known += 1
            self.new.append(row)
            self._kept_alive.append(keep_alive)
            self._numbers[key] = number
        return number
