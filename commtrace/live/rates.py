"""Sums over the last seconds: bytes and calls by kind, and the blocked time of each rank.

Each call counts in the second in which it ended, by the clock of its rank; blocked time counts in
the seconds in which the rank was blocked. The last `HORIZON_S` seconds are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

HORIZON_S = 60
_SECOND = 1_000_000_000


class Rates:
    """Sums by second, of ranks and kinds given by number."""

    def __init__(self) -> None:
        self._blocked: dict[int, np.ndarray[Any, Any]] = {}
        self._by_kind: dict[int, np.ndarray[Any, Any]] = {}
        self._newest = -1

    def add(
        self,
        *,
        rank: np.ndarray[Any, Any],
        kind: np.ndarray[Any, Any],
        wire_bytes: np.ndarray[Any, Any],
        end_ns: np.ndarray[Any, Any],
        blocked_ns: np.ndarray[Any, Any],
        num_ranks: int,
        num_kinds: int,
        now_ns: int,
    ) -> None:
        """Add calls; those that ended before the horizon, or in the future, are left out."""
        newest = now_ns // _SECOND + 2
        self._drop_before(newest - HORIZON_S)
        second = end_ns // _SECOND
        is_near = (second > newest - HORIZON_S) & (second <= newest)
        if not is_near.any():
            return
        rank, kind, second = rank[is_near], kind[is_near], second[is_near]
        wire_bytes, blocked_ns = wire_bytes[is_near], blocked_ns[is_near]
        for each in np.unique(second).tolist():
            of_second = second == each
            sums = self._by_kind.setdefault(each, np.zeros((0, 2)))
            added = np.stack(
                [
                    np.bincount(kind[of_second], wire_bytes[of_second], num_kinds),
                    np.bincount(kind[of_second], minlength=num_kinds).astype(float),
                ],
                axis=1,
            )
            self._by_kind[each] = padded_sum(sums, added)
        self._add_blocked(rank, end_ns[is_near], blocked_ns.clip(0), num_ranks)

    def _add_blocked(
        self,
        rank: np.ndarray[Any, Any],
        end_ns: np.ndarray[Any, Any],
        blocked_ns: np.ndarray[Any, Any],
        num_ranks: int,
    ) -> None:
        """Divide each blocked time among the seconds that it spans."""
        begin_ns = end_ns - np.minimum(blocked_ns, HORIZON_S * _SECOND)
        while len(rank):
            second = (end_ns - 1) // _SECOND
            part_begin = np.maximum(begin_ns, second * _SECOND)
            part = (end_ns - part_begin).clip(0)
            for each in np.unique(second).tolist():
                of_second = second == each
                added = np.bincount(rank[of_second], part[of_second], num_ranks)
                sums = self._blocked.setdefault(each, np.zeros(0))
                self._blocked[each] = padded_sum(sums, added)
            rest = part_begin > begin_ns
            rank, end_ns, begin_ns = rank[rest], part_begin[rest], begin_ns[rest]

    def _drop_before(self, second: int) -> None:
        for sums in (self._blocked, self._by_kind):
            for stale in [each for each in sums if each < second]:
                del sums[stale]

    def blocked_ns(self, seconds: range, num_ranks: int) -> np.ndarray[Any, Any]:
        """Return the blocked time of each rank in some seconds."""
        return _total(self._blocked, seconds, np.zeros(num_ranks))

    def by_kind(self, seconds: range, num_kinds: int) -> np.ndarray[Any, Any]:
        """Return wire bytes and number of calls of each kind in some seconds."""
        return _total(self._by_kind, seconds, np.zeros((num_kinds, 2)))


def _total(
    sums: Mapping[int, np.ndarray[Any, Any]], seconds: range, total: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    for second in seconds:
        if second in sums:
            total[: len(sums[second])] += sums[second]
    return total


def padded_sum(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the sum of two arrays; the shorter is padded with zeros."""
    if len(one) < len(other):
        one, other = other, one
    total = one.copy()
    total[: len(other)] += other
    return total
