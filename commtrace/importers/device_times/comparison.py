"""Comparison of a tool's operations with the recorded calls that they may belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commtrace.importers.device_times.recorded_calls import CountedCalls
from commtrace.importers.device_times.timings import Timing

TOLERANCE_NS = 10_000_000
"""Difference between two clocks of a host, since one may be adjusted while the program runs."""

_MOST_BARRIER_BYTES = 8
"""Size of the all-reduce by which torch implements a barrier, at most."""

_MOST_TRIED = 1000


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of a rank that are counted together, by number."""

    timings: Sequence[Timing]
    kind: np.ndarray
    number: np.ndarray
    payload: np.ndarray
    issued: np.ndarray
    done: np.ndarray


def operations_of(timings: list[Timing]) -> Operations:
    """Return the operations in the order of their numbers."""
    timings.sort(key=lambda each: each.number)
    columns = zip(
        *[(each.number, each.payload_bytes, each.issued_ns, each.done_ns) for each in timings],
        strict=True,
    )
    kind = np.array([each.kind for each in timings], dtype=object)
    return Operations(timings, kind, *(np.array(column, dtype=np.int64) for column in columns))


def contradiction(calls: CountedCalls, operations: Operations, shift: int) -> str:
    """Return the first operation that does not fit its call; empty if all fit.

    The call of an operation has its number, less the shift: the number of first calls that the
    recording lacks. Operations that were issued outside of the recording have no call.
    """
    place = operations.number - shift
    is_inside = (place >= 0) & (place < len(calls.rows))
    if not is_inside.all() and not _are_outside(calls, operations, place)[~is_inside].all():
        first = int(np.flatnonzero(~is_inside)[0])
        return (
            f"operation {operations.number[first]} has no recorded call among {len(calls.rows)}: "
            f"the recording may lack the first calls (with "
            "NCCL_INSPECTOR_DUMP_VERBOSE=1, times show it)"
        )
    own, place = np.flatnonzero(is_inside), place[is_inside]
    size, payload = operations.payload[own], calls.payload[place]
    is_barrier = (calls.kind[place] == "barrier") & (size <= _MOST_BARRIER_BYTES)
    differs = (size != payload) & (size >= 0) & (payload >= 0) & ~is_barrier
    for each in np.flatnonzero(differs)[:1].tolist():
        return (
            f"operation {operations.number[own[each]]} has {size[each]:,} bytes, its call "
            f"{payload[each]:,}"
        )
    kind, of_call = operations.kind[own], calls.kind[place]
    for each in np.flatnonzero((kind != "") & (kind != of_call))[:1].tolist():
        return f"operation {operations.number[own[each]]} is {kind[each]}, its call {of_call[each]}"
    issue, end = calls.issue[place], calls.end[place]
    issued, done = operations.issued[own], operations.done[own]
    is_known = issue >= 0
    is_early = (issued >= 0) & (issued < issue - TOLERANCE_NS)
    is_late = (issued >= 0) & (issued > end + TOLERANCE_NS)
    is_over = (done >= 0) & (done < issue - TOLERANCE_NS)
    for each in np.flatnonzero(is_known & (is_early | is_late | is_over))[:1].tolist():
        return f"operation {operations.number[own[each]]} was at another time than its call"
    return "" if len(own) else "all operations were outside of the recording"


def _are_outside(calls: CountedCalls, operations: Operations, place: np.ndarray) -> np.ndarray:
    """Return whether each operation was issued before the recording began, or after it ended."""
    begin, end = calls.recorded
    issued = operations.issued
    is_before = (place < 0) & (issued < begin + TOLERANCE_NS)
    is_after = (place >= 0) & (issued > end - TOLERANCE_NS)
    return (issued >= 0) & (is_before | is_after)


def shift_by_times(calls: CountedCalls, operations: Operations, least: int) -> int | None:
    """Return the only shift that fits, by the times at which operations were issued.

    None if times are unknown, or if none or several fit. Shifts below `least` are not tried.
    """
    issued = operations.issued
    if not len(calls.rows) or (issued < 0).any() or (calls.issue < 0).any():
        return None
    in_time = (issued >= calls.issue[0] - TOLERANCE_NS) & (issued <= calls.end[-1] + TOLERANCE_NS)
    if not in_time.any():
        return None
    first = int(np.flatnonzero(in_time)[0])
    begin, end = np.searchsorted(
        calls.issue,
        [issued[first] - TOLERANCE_NS - _longest(calls), issued[first] + TOLERANCE_NS],
    )
    tried = operations.number[first] - np.arange(begin, min(end, begin + _MOST_TRIED))
    tried = tried[tried >= least].tolist()
    fitting = [shift for shift in tried if not contradiction(calls, operations, shift)]
    return fitting[0] if len(fitting) == 1 and end - begin <= _MOST_TRIED else None


def _longest(calls: CountedCalls) -> int:
    return int((calls.end - calls.issue).max())


def pairs(calls: CountedCalls, operations: Operations, shift: int) -> list[tuple[int, Timing]]:
    """Return the row in `comm` of each operation that has a call."""
    rows = calls.rows.tolist()
    places = (operations.number - shift).tolist()
    return [
        (rows[place], timing)
        for place, timing in zip(places, operations.timings, strict=True)
        if 0 <= place < len(rows)
    ]
