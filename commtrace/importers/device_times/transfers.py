"""Times of sends and receives that another tool measured, joined to the calls of a recording.

NCCL runs the transfers between two ranks on a communicator of their own or on the group's, and no
number says which call of torch a transfer is. They are compared by ends and size; transfers that
have both in common are compared in their order:

    with the times at which they were issued    the only part of the recorded calls that fits them
    without                                     all of them, if there are as many

Without times, both must begin with the first transfer. The tool's numbers show whether it does, and
collectives of the rank, whose numbers count from the creation of a group, whether the recording
does. Nothing is joined if the tool lacks transfers between others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from commtrace.importers.device_times.comparison import (
    contradiction,
    operations_of,
    pairs,
    shift_by_times,
)
from commtrace.importers.device_times.recorded_calls import CountedCalls, RecordedCalls
from commtrace.importers.device_times.timings import Timing

_Lane = tuple[int, str, int, int]
"""Rank, kind, peer and bytes."""


def join_transfers(
    recorded: RecordedCalls, timings: Sequence[Timing], from_start: Collection[int]
) -> tuple[list[tuple[int, Timing]], Counter[str]]:
    """Return the row in `comm` of each transfer, and how many were not joined, by reason.

    Args:
        recorded: The calls.
        timings: Transfers.
        from_start: Ranks whose recording is known to begin with the first call.
    """
    joined: list[tuple[int, Timing]] = []
    left: Counter[str] = Counter()
    lanes: dict[_Lane, list[Timing]] = {}
    for each in timings:
        if min(each.peer, each.payload_bytes) < 0:
            left[f"{each.counter} of an unknown peer or size"] += 1
        else:
            lane = each.rank, each.counter, each.peer, each.payload_bytes
            lanes.setdefault(lane, []).append(each)
    numbers = _numbers(timings)
    firsts: dict[str, str] = {}
    for lane, own in lanes.items():
        counters = [numbers[each] for each in {_counter(timing) for timing in own}]
        is_timed = all(each.issued_ns >= 0 for each in own)
        calls = recorded.transfers(*lane)
        reason = "" if is_timed else _unsure(lane[0] in from_start, counters)
        if any(len(each) < max(each) - min(each) + 1 for each in counters):
            reason = "transfers with gaps in the tool's numbering"
        found = reason or _of_lane(calls, own, is_timed=is_timed)
        if isinstance(found, str):
            left[f"{found} (first: {firsts.setdefault(found, _text(lane))})"] += len(own)
        else:
            joined += found
            left["issued before the recording began, or after it ended"] += len(own) - len(found)
    return joined, +left


_Counter = tuple[int, str, str]
"""Rank, group and kind, whose transfers a tool counts."""


def _counter(timing: Timing) -> _Counter:
    return timing.rank, timing.group, timing.counter


def _numbers(timings: Iterable[Timing]) -> dict[_Counter, set[int]]:
    found: dict[_Counter, set[int]] = {}
    for each in timings:
        found.setdefault(_counter(each), set()).add(each.number)
    return found


def _unsure(is_from_start: bool, counters: Sequence[set[int]]) -> str:
    """Return why transfers without times cannot be joined by their number; empty if they can."""
    if len(counters) > 1:
        return "transfers of several communicators, without the times at which they were issued"
    if not is_from_start or min(counters[0]) != 0:
        return "transfers without times, which may not be the first transfers"
    return ""


def _of_lane(
    calls: CountedCalls | str, timings: Sequence[Timing], *, is_timed: bool
) -> list[tuple[int, Timing]] | str:
    """Return the row of each transfer, or why they cannot be joined."""
    if isinstance(calls, str):
        return calls
    ordered = sorted(timings, key=lambda each: each.issued_ns if is_timed else each.number)
    operations = operations_of([each._replace(number=place) for place, each in enumerate(ordered)])
    if len(ordered) == len(calls.rows):
        if contradiction(calls, operations, 0):
            return "transfers at other times than the recording states"
        return pairs(calls, operations, 0)
    shift = shift_by_times(calls, operations, least=-len(calls.rows))
    if shift is None:
        return "the recording has more or fewer transfers, and no times show which belong together"
    return pairs(calls, operations, shift)


def _text(lane: _Lane) -> str:
    rank, kind, peer, size = lane
    ends = f"from rank {rank} to rank {peer}" if kind == "send" else f"on rank {rank} from {peer}"
    return f"{kind} of {size:,} bytes {ends}"
