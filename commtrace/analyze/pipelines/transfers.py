"""Transfers between pipeline stages, found by stage, micro-batch and direction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.run.frame import Frames, joined
from commtrace.schema import BACKWARD, BACKWARD_INPUT, FORWARD

_COLUMNS = [
    *("rank", "id", "peer", "kind", "stage", "micro_batch", "direction"),
    *("issue_ns", "call_ns", "blocked_ns", "complete_ns"),
]
_SEND, _RECEIVE = "send", "recv"
_DIRECTIONS = {FORWARD: FORWARD, BACKWARD: BACKWARD, BACKWARD_INPUT: BACKWARD}
"""Actions that send and receive, with the direction of these transfers."""


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """A send or a receive.

    Attributes:
        issue_ns: When it was issued.
        blocked: Begin and end of the last time in which it blocked its rank.
    """

    rank: int
    id: int
    peer: int
    issue_ns: int
    blocked: tuple[int, int]

    @property
    def name(self) -> str:
        """Rank and number of the call."""
        return f"{self.rank}:{self.id}"


Key = tuple[str, int, int, int, str]
"""Kind, rank, stage, micro-batch and direction."""


class Transfers:
    """Transfers of the stages of a run."""

    def __init__(self, calls: pd.DataFrame) -> None:
        self._by_key: dict[Key, list[StageTransfer]] = {}
        self._by_kind: dict[tuple[str, int], list[StageTransfer]] = {}
        self._of_rank: dict[int, list[StageTransfer]] = {}
        rows = calls.sort_values("issue_ns", kind="stable")[_COLUMNS]
        for row in rows.itertuples(index=False, name=None):
            rank, number, peer, kind, stage, micro_batch, direction, *times = row
            each = StageTransfer(rank, number, peer, times[0], _blocked(*times))
            self._by_key.setdefault((kind, rank, stage, micro_batch, direction), []).append(each)
            self._of_rank.setdefault(rank, []).append(each)
            self._by_kind.setdefault((kind, rank), []).append(each)

    def send(
        self, rank: int, stage: int, micro_batch: int, direction: str, span: tuple[int, int]
    ) -> StageTransfer | None:
        """Return the last send of an output that is issued in a span of time."""
        return _last(self._by_key.get((_SEND, rank, stage, micro_batch, direction), []), *span)

    def receive(
        self, rank: int, stage: int, micro_batch: int, direction: str, span: tuple[int, int]
    ) -> StageTransfer | None:
        """Return the last receive of an input that is issued in a span of time."""
        return _last(self._by_key.get((_RECEIVE, rank, stage, micro_batch, direction), []), *span)

    def last_send(self, rank: int, begin: int, end: int) -> StageTransfer | None:
        """Return the last send that a rank issues in a span of time."""
        return _last(self._by_kind.get((_SEND, rank), []), begin, end)

    def blocked_ns(self, rank: int, begin: int, end: int, other_than: StageTransfer | None) -> int:
        """Return how long a rank is blocked by other receives in a span of time."""
        every = self._by_kind.get((_RECEIVE, rank), [])
        total, until = 0, begin
        # A receive that blocks may have been issued long before; few are in flight at once.
        last = bisect_right(every, end, key=_issued)
        for each in sorted(every[max(0, last - _MOST_IN_FLIGHT) : last], key=_blocked_at):
            if each is not other_than:
                first, past = max(each.blocked[0], until), min(each.blocked[1], end)
                total += max(0, past - first)
                until = max(until, past)
        return total

    def within(
        self, rank: int, stage: int, micro_batch: int, action: str, begin: int, end: int
    ) -> tuple[int, int]:
        """Return a span of an action without the receive and the send that are in its mark."""
        direction = _DIRECTIONS.get(action, "")
        key = rank, stage, micro_batch, direction
        receive = self.receive(*key, (begin + 1, end))
        send = self.send(*key, (begin + 1, end))
        first = begin if receive is None else min(max(begin, receive.blocked[1]), end)
        last = end if send is None else max(min(end, send.issue_ns), first)
        return first, last

    def pipelines(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return the number of each rank's pipeline; ranks with transfers between them share it."""
        leader = {rank: rank for rank in ranks}

        def first(rank: int) -> int:
            while leader[rank] != rank:
                rank = leader[rank]
            return rank

        for of_rank in self._of_rank.values():
            for rank, peer in {(each.rank, each.peer) for each in of_rank}:
                if rank in leader and peer in leader:
                    low, high = sorted((first(rank), first(peer)))
                    leader[high] = low
        leads = sorted({first(rank) for rank in leader})
        return {rank: leads.index(first(rank)) for rank in leader}


_MOST_IN_FLIGHT = 64


def _issued(transfer: StageTransfer) -> int:
    return transfer.issue_ns


def _blocked_at(transfer: StageTransfer) -> int:
    return transfer.blocked[0]


def _last(every: list[StageTransfer], begin: int, end: int) -> StageTransfer | None:
    place = bisect_right(every, end, key=_issued)
    found = every[place - 1] if place else None
    return found if found is not None and found.issue_ns >= begin else None


def _blocked(issue_ns: int, call_ns: int, blocked_ns: int, complete_ns: int) -> tuple[int, int]:
    """Return when a transfer last blocked its rank: in its call, or in the wait for it."""
    returned = issue_ns + max(call_ns, 0)
    waited = max(blocked_ns, 0) - max(call_ns, 0)
    if waited <= 0 or complete_ns < returned:
        return issue_ns, returned
    return max(complete_ns - waited, returned), complete_ns


def transfers_of(frames: Frames) -> Transfers:
    """Return the transfers of the stages of a run."""
    return Transfers(joined(frames.by_ranks(_calls_of_stages)))


def _calls_of_stages(part: Frames) -> pd.DataFrame:
    comm = part.comm
    is_of_stage = (comm["stage"] >= 0) & (comm["micro_batch"] >= 0) & (comm["issue_ns"] >= 0)
    is_of_stage &= comm["kind"].isin([_SEND, _RECEIVE])
    kept = comm.loc[is_of_stage, _COLUMNS]
    return kept.astype({"kind": object, "direction": object})
