"""Entries of a table with few rows, up to a number, until they are written."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol


class HasRow(Protocol):
    """An entry that becomes a row when it is written."""

    def row(self, number: int, epoch: int, step: int) -> Any:
        """Return the row, with its number on its rank."""
        ...


class SmallTable:
    """Queue of entries, to which threads may add while another takes them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_taken = 0
        self._entries: deque[tuple[HasRow, int]] = deque()

    def add(self, entry: HasRow, step: int) -> None:
        """Keep an entry of a step, unless the bound has been reached."""
        if self._num_taken + len(self._entries) < self._most:
            self._entries.append((entry, step))

    def take(self, epoch: int) -> list[Any]:
        """Take the entries, as rows."""
        taken = [self._entries.popleft() for _ in range(len(self._entries))]
        first = self._num_taken
        self._num_taken += len(taken)
        return [entry.row(first + place, epoch, step) for place, (entry, step) in enumerate(taken)]
