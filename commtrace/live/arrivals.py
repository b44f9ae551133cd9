"""Progress of ranks in their groups, disagreements, and stragglers, from the calls of all ranks.

Ended calls are written to a spool once, calls in flight again in each batch. A call's *number*
counts the collectives of its group on its rank. It is the sequence number, less the transfers
before it in the group; after a gap in the sequence, numbers in groups with transfers are unknown.

A *slot* is a member of a group that has made a call in it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from commtrace.tracefile.collective_numbers import UNKNOWN, collective_numbers

Array = np.ndarray[Any, Any]

_MOST_CARRIED = 200_000
_MOST_NUMBERS_CARRIED = 256
_MOST_DISAGREEMENTS = 64


@dataclass(frozen=True, slots=True)
class CallArrays:
    """Calls of many ranks: arrays of equal length. Ranks, groups and sites are numbers."""

    rank: Array
    id: Array
    seq: Array
    issue_ns: Array
    call_ns: Array
    blocked_ns: Array
    complete_ns: Array
    site: Array
    group: Array
    is_transfer: Array

    @property
    def end_ns(self) -> Array:
        """End of each call: its completion, or else its last known instant."""
        known = self.issue_ns + np.maximum(np.maximum(self.call_ns, self.blocked_ns), 0)
        return np.where(self.complete_ns >= self.issue_ns, self.complete_ns, known)


@dataclass(slots=True)
class Slot:
    """Progress of a rank in a group.

    Attributes:
        last: number of the last collective that the rank has issued; -1 before the first.
        last_call: id, issue, completion and site of this collective.
        next_seq: sequence number of the rank's next call.
        num_transfers: number of transfers before `next_seq`, if `is_mixed`.
        is_mixed: the rank has made transfers in the group.
        is_unsure: calls were not seen, so later numbers are unknown.
    """

    rank: int
    group: int
    last: int = UNKNOWN
    last_call: tuple[int, int, int, int] | None = None
    next_seq: int = 0
    num_transfers: int = 0
    is_mixed: bool = False
    is_unsure: bool = False


class GroupProgress:
    """Numbers calls within their groups, and keeps the progress of each member.

    Attributes:
        slots: progress by rank and group.
        num_transfers: number of transfers by rank, group and call site.
    """

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], Slot] = {}
        self.num_transfers: dict[tuple[int, int, int], int] = {}
        self._pending: dict[tuple[int, int, int], int] = {}

    def forget(self, rank: int) -> None:
        """Forget a rank that was restarted."""
        self.slots = {key: slot for key, slot in self.slots.items() if key[0] != rank}
        for numbers in (self._pending, self.num_transfers):
            for key in [key for key in numbers if key[0] == rank]:
                del numbers[key]

    def add(self, calls: CallArrays) -> Array:
        """Return the number of each call in its group; -1 for transfers and if unknown.

        Together with earlier calls, these are all calls that the ranks have issued so far.
        """
        number = np.where(calls.is_transfer | (calls.seq < 0), UNKNOWN, calls.seq)
        if not len(number):
            return number
        key = (calls.rank << 32) | calls.group
        order = np.lexsort((calls.seq, key))
        key = key[order]
        begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        ends = np.r_[begins[1:], len(key)]
        has_transfers = np.add.reduceat(calls.is_transfer[order].astype(np.int64), begins) > 0
        for begin, end, mixed in zip(begins.tolist(), ends.tolist(), has_transfers, strict=True):
            places = order[begin:end]
            at = int(calls.rank[places[0]]), int(calls.group[places[0]])
            slot = self.slots.get(at)
            if slot is None:
                slot = self.slots[at] = Slot(*at)
            if mixed or slot.is_mixed:
                self._count(slot, calls, places, number)
                continue
            last = int(calls.seq[places[-1]])
            if last >= slot.last:
                slot.last, slot.last_call = last, _last_call(calls, places[-1])
            slot.next_seq = max(slot.next_seq, last + 1)
        return number

    def _count(self, slot: Slot, calls: CallArrays, places: Array, number: Array) -> None:
        """Number calls, in the order of their sequence, in a group with transfers."""
        slot.is_mixed = True
        seq, transfer = calls.seq[places], calls.is_transfer[places]
        is_new = seq >= slot.next_seq
        number[places] = UNKNOWN
        for place in places[~is_new & ~transfer].tolist():  # in flight when it was numbered
            number[place] = self._pending.get((slot.rank, slot.group, int(calls.seq[place])), -1)
        new, seq, transfer = places[is_new], seq[is_new], transfer[is_new]
        if len(new):
            of_slot = np.zeros(len(new), dtype=np.int64)
            found = collective_numbers(of_slot, seq - slot.next_seq, transfer, of_slot == 0)
            if not slot.is_unsure:
                known = found >= 0
                number[new[known]] = found[known] + slot.next_seq - slot.num_transfers
            # A call that was not seen may be a transfer, so that later numbers are unknown.
            slot.is_unsure |= int(seq[-1]) - slot.next_seq + 1 != len(seq)
            slot.next_seq = int(seq[-1]) + 1
            slot.num_transfers += int(transfer.sum())
            sites, counts = np.unique(calls.site[new[transfer]], return_counts=True)
            for site, count in zip(sites.tolist(), counts.tolist(), strict=True):
                end = slot.rank, slot.group, site
                self.num_transfers[end] = self.num_transfers.get(end, 0) + count
            is_open = ~transfer & (calls.complete_ns[new] < 0)
            for place in new[is_open].tolist():
                key = slot.rank, slot.group, int(calls.seq[place])
                self._pending[key] = int(number[place])
        known = places[number[places] >= max(slot.last, 0)]
        if len(known):
            slot.last = int(number[known[-1]])
            slot.last_call = _last_call(calls, known[-1])
        while len(self._pending) > _MOST_CARRIED:
            del self._pending[next(iter(self._pending))]


def _last_call(calls: CallArrays, place: Any) -> tuple[int, int, int, int]:
    return (
        int(calls.id[place]),
        int(calls.issue_ns[place]),
        int(calls.complete_ns[place]),
        int(calls.site[place]),
    )


class Disagreements:
    """Collectives in which two members have call sites of unequal signature.

    The comparison is preliminary: signatures may differ in an unknown property.

    Attributes:
        found: by group and number, a rank and its call site for each signature.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._carried = np.empty((0, 5), dtype=np.int64)

    def add(self, group: Array, number: Array, signature: Array, rank: Array, site: Array) -> None:
        """Add calls with a known number."""
        new = np.stack([group, number, signature, rank, site], axis=1)
        rows = np.concatenate([self._carried, new])
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        if len(rows):
            rows = rows[np.r_[True, (rows[1:, :3] != rows[:-1, :3]).any(axis=1)]]
        same = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
        for group_number, call_number in np.unique(rows[1:][same][:, :2], axis=0).tolist():
            if len(self.found) < _MOST_DISAGREEMENTS or (group_number, call_number) in self.found:
                of_call = (rows[:, 0] == group_number) & (rows[:, 1] == call_number)
                ends = [(int(row[3]), int(row[4])) for row in rows[of_call]]
                self.found[group_number, call_number] = ends
        self._carried = _newest_numbers(rows, rows[:, 0], rows[:, 1])


class Stragglers:
    """Delays of collectives that need every member, by the member that arrived last.

    A collective is complete once all of its members have ended it. Its delay is the time for which
    all other members were blocked before the last arrival, as in table `stragglers`. Since clocks
    are not aligned here, the blocked time of the last member is subtracted.
    """

    def __init__(self) -> None:
        self.late: deque[tuple[int, int, int]] = deque(maxlen=_MOST_CARRIED)
        self._carried = np.empty((0, 5), dtype=np.int64)

    def add(
        self, group: Array, number: Array, rank: Array, issue_ns: Array, blocked_ns: Array
    ) -> None:
        """Add calls that have ended."""
        new = np.stack([group, number, rank, issue_ns, blocked_ns], axis=1)
        self._carried = np.concatenate([self._carried, new])

    def complete(self, sizes: Array) -> None:
        """Find the stragglers of the collectives that are complete, by the sizes of groups."""
        rows = self._carried
        if not len(rows):
            return
        rows = rows[np.lexsort((rows[:, 3], rows[:, 1], rows[:, 0]))]
        begins = np.flatnonzero(np.r_[True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1)])
        counts = np.diff(np.r_[begins, len(rows)])
        is_whole = counts >= np.maximum(sizes[rows[begins, 0]], 1)
        last = begins + counts - 1
        arrival = np.repeat(rows[last, 3], counts)
        is_last = np.zeros(len(rows), dtype=bool)
        is_last[last] = True
        wait = np.minimum(arrival - rows[:, 3], rows[:, 4])
        wait[rows[:, 4] < 0] = 0  # unknown: nobody is seen to wait
        wait[is_last] = np.iinfo(np.int64).max
        delay = np.minimum.reduceat(wait, begins)
        # A rank blocked no longer than the last one did not wait for it: their clocks differ.
        blocked = rows[:, 4].clip(0)
        own = blocked[last]
        blocked[is_last] = np.iinfo(np.int64).max
        delay = np.minimum(delay, np.minimum.reduceat(blocked, begins) - own)
        delayed = is_whole & (counts > 1) & (delay > 0)
        self.late.extend(
            zip(
                rows[last[delayed], 3].tolist(),
                rows[last[delayed], 2].tolist(),
                delay[delayed].tolist(),
                strict=True,
            )
        )
        rest = rows[~np.repeat(is_whole, counts)]
        self._carried = _newest_numbers(rest, rest[:, 0], rest[:, 1])

    def since(self, begin_ns: int) -> dict[int, tuple[int, int, float]]:
        """Return, by rank, the sum of the delays since a time, their number, and their spread.

        The spread equals the number if all delays are equal, and is about 1 if a single delay
        dominates.
        """
        sums: dict[int, tuple[int, int, int]] = {}
        for at, rank, delay in self.late:
            if at >= begin_ns:
                total, num, squares = sums.get(rank, (0, 0, 0))
                sums[rank] = total + delay, num + 1, squares + delay * delay
        return {
            rank: (sum_, num, sum_ * sum_ / squares) for rank, (sum_, num, squares) in sums.items()
        }

    def forget_before(self, begin_ns: int) -> None:
        """Forget the delays before a time."""
        while self.late and self.late[0][0] < begin_ns:
            self.late.popleft()


def _newest_numbers(rows: Array, group: Array, number: Array) -> Array:
    """Return the rows of each group's last numbers, so that memory stays bounded."""
    if not len(rows):
        return rows
    newest = np.full(int(group.max()) + 1, UNKNOWN, dtype=np.int64)
    np.maximum.at(newest, group, number)
    return rows[number > newest[group] - _MOST_NUMBERS_CARRIED][-_MOST_CARRIED:]
