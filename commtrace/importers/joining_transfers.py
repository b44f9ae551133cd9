"""Times of sends and receives that another tool measured, joined to the calls of a recording.

No tool numbers the transfers between two ranks, and NCCL runs them on a communicator of their own
or on that of the group. They are compared by ends and size: transfers of one size from one rank to
another are joined in order if the tool has as many of them as the recording, or if only one part of
those recorded fits the times at which the tool's were issued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from commtrace.importers.fitting import contradiction, operations_of, pairs, shift_by_times
from commtrace.importers.recorded_calls import CountedCalls, RecordedCalls
from commtrace.importers.timings import Timing

_Lane = tuple[int, str, int, int]
"""Rank, kind, peer and bytes."""


def join_transfers(
    recorded: RecordedCalls, timings: Iterable[Timing]
) -> tuple[list[tuple[int, Timing]], Counter[str]]:
    """Return the row in `comm` of each transfer, and how many were not joined, by reason."""
    joined: list[tuple[int, Timing]] = []
    left: Counter[str] = Counter()
    lanes: dict[_Lane, list[Timing]] = {}
    for each in timings:
        if min(each.peer, each.payload_bytes) < 0:
            left[f"{each.counter} of an unknown peer or size"] += 1
        else:
            lane = each.rank, each.counter, each.peer, each.payload_bytes
            lanes.setdefault(lane, []).append(each)
    firsts: dict[str, str] = {}
    for lane, own in lanes.items():
        found = _of_lane(recorded.transfers(*lane), own)
        if isinstance(found, str):
            reason = f"{found} (first: {firsts.setdefault(found, _text(lane))})"
            left[reason] += len(own)
        else:
            joined += found
            left["issued before the recording began, or after it ended"] += len(own) - len(found)
    return joined, +left


def _of_lane(
    calls: CountedCalls | str, timings: Sequence[Timing]
) -> list[tuple[int, Timing]] | str:
    """Return the row of each transfer, or why they cannot be joined."""
    if isinstance(calls, str):
        return calls
    is_timed = all(each.issued_ns >= 0 for each in timings)
    if not is_timed and len({each.group for each in timings}) > 1:
        return "transfers of several communicators, without the times at which they were issued"
    ordered = sorted(timings, key=lambda each: each.issued_ns if is_timed else each.number)
    operations = operations_of([each._replace(number=place) for place, each in enumerate(ordered)])
    if len(ordered) == len(calls.rows):
        if contradiction(calls, operations, 0):
            return "transfers at other times than the recorded ones"
        return pairs(calls, operations, 0)
    shift = shift_by_times(calls, operations, least=-len(calls.rows))
    if shift is None:
        return "the recording has more or fewer transfers, and no times show which belong together"
    return pairs(calls, operations, shift)


def _text(lane: _Lane) -> str:
    rank, kind, peer, size = lane
    ends = f"from rank {rank} to rank {peer}" if kind == "send" else f"on rank {rank} from {peer}"
    return f"{kind} of {size:,} bytes {ends}"
