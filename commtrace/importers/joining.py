"""Times on devices that another tool measured, joined to the calls of a recording.

    import_trace(["nccl-inspector-42/"], recording="run.json")

An operation belongs to the call of the same rank and group with the same number among the calls
that the tool counts (`timings`). A group of the tool's is joined to the recorded group with the
same ranks if every one of its operations fits a call: there is a call of that number, of the same
kind and size, that was issued before the operation ended. If one does not fit, the group is not
joined; nor is it if several recorded groups fit, or if several groups of the tool's fit one.

The numbers count from the creation of the group. A recording that began later lacks the first
calls; how many is known if the tool states when operations were issued (`_shift_by_times`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commtrace.importers.names import NOT_KNOWN
from commtrace.importers.recorded_calls import CountedCalls, RecordedCalls
from commtrace.importers.timings import COLLECTIVES, COUNTERS, KnownGroup, Timing, Timings
from commtrace.tracefile.trace import StringColumn, StringTable, Trace
from commtrace.units import counted

_TOLERANCE_NS = 10_000_000
"""Difference of two clocks of one host, of which one may be adjusted while the program runs."""

_MOST_BARRIER_BYTES = 8
"""Size of the all-reduce by which torch implements a barrier, at most."""

_MOST_TRIED = 1000


@dataclass(frozen=True, slots=True)
class JoinedRecording:
    """A recording with times of devices.

    Attributes:
        trace: The recording.
        notes: Sentences on what was joined, and what was not, with the reason.
    """

    trace: Trace
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Operations:
    """Operations of one rank, group and counter."""

    timings: Sequence[Timing]
    kind: np.ndarray
    number: np.ndarray
    payload: np.ndarray
    issued: np.ndarray
    done: np.ndarray


_Of = tuple[int, str]
"""Rank and counter."""


@dataclass(slots=True)
class _Group:
    """A group of the tool's: its operations, and the recorded groups that fit, with shifts."""

    name: str
    operations: dict[_Of, _Operations]
    fitting: dict[str, dict[_Of, int]] = field(default_factory=dict)
    reason: str = ""

    @property
    def num_operations(self) -> int:
        return sum(len(each.timings) for each in self.operations.values())


def join_timings(recording: Trace, timings: Timings, source: str) -> JoinedRecording:
    """Return the recording with the times of the operations of the tool `source`."""
    found, left = _operations(timings)
    recorded = RecordedCalls(recording)
    for group in found.values():
        _try(group, recorded, timings.groups[group.name])
    chosen = _assigned(list(found.values()))
    trace, num_joined = _with_times(recorded, found, chosen)
    total = sum(group.num_operations for group in found.values()) + sum(left.values())
    notes = [f"{num_joined:,} of {counted(total, 'operation')} of {source} were joined to calls"]
    notes += [_note(group, chosen) for group in found.values()]
    notes += [f"{counted(num, 'operation')} not joined: {text}" for text, num in left.items()]
    facts = {"joined_from": source, "joined": notes}
    return JoinedRecording(replace(trace, run={**trace.run, **facts}), notes)


def _note(group: _Group, chosen: Mapping[str, str]) -> str:
    num = counted(group.num_operations, "operation")
    name = chosen.get(group.name)
    if name is None:
        return f"group {group.name} was not joined ({num}): {group.reason}"
    shifts = sorted(set(group.fitting[name].values()))
    text = f"group {group.name} is recorded group {name} ({num})"
    if shifts == [0]:
        return f"{text}, from its first call on"
    return f"{text}, whose recording lacks the first {', '.join(map(str, shifts))} calls of a kind"


def _operations(timings: Timings) -> tuple[dict[str, _Group], Counter[str]]:
    """Return the operations by group, and how many cannot be joined, by reason."""
    left: Counter[str] = Counter()
    by_group: dict[str, dict[_Of, list[Timing]]] = {}
    for each in timings.operations:
        if each.counter not in COUNTERS:
            left[f"{each.counter}: its numbers do not count the calls of torch"] += 1
        elif timings.groups[each.group].size == 1 and each.counter != COLLECTIVES:
            left["NCCL does not count the operations of a group of one rank"] += 1
        else:
            of_group = by_group.setdefault(each.group, {})
            of_group.setdefault((each.rank, each.counter), []).append(each)
    found = {
        name: _Group(name, {key: _arrays(own) for key, own in of_group.items()})
        for name, of_group in by_group.items()
    }
    return found, left


def _arrays(timings: list[Timing]) -> _Operations:
    timings.sort(key=lambda each: each.number)
    columns = zip(
        *[(each.number, each.payload_bytes, each.issued_ns, each.done_ns) for each in timings],
        strict=True,
    )
    kind = np.array([each.kind for each in timings], dtype=object)
    return _Operations(timings, kind, *(np.array(column, dtype=np.int64) for column in columns))


def _try(group: _Group, recorded: RecordedCalls, known: KnownGroup) -> None:
    """Set the recorded groups that fit, or the reason for which none does."""
    alike = [
        name
        for name, own in recorded.ranks_of.items()
        if len(own) == known.size and all(own[place] == rank for place, rank in known.ranks.items())
    ]
    if group.name in alike:  # dumps have the names of torch
        alike = [group.name]
    reasons = []
    for name in alike:
        shifts: dict[_Of, int] = {}
        for (rank, counter), operations in group.operations.items():
            shift = _shift(recorded, name, rank, counter, operations)
            if isinstance(shift, str):
                reasons.append(f"{shift} (rank {rank} in recorded group {name})")
                break
            shifts[rank, counter] = shift
        else:
            group.fitting[name] = shifts
    if not alike:
        group.reason = "no recorded group has its ranks"
    elif reasons:
        group.reason = reasons[0]


def _shift(
    recorded: RecordedCalls, name: str, rank: int, counter: str, operations: _Operations
) -> int | str:
    """Return how many first calls the recording lacks, or why the operations do not fit it."""
    calls = recorded.counted(rank, name, counter)
    if isinstance(calls, str):
        return calls
    reason = _contradiction(calls, operations, 0)
    if not reason:
        return 0
    shift = _shift_by_times(calls, operations)
    return reason if shift is None else shift


def _contradiction(calls: CountedCalls, operations: _Operations, shift: int) -> str:
    """Return the first operation that does not fit its call; empty if all fit.

    Operations that were issued outside of the recording have no call.
    """
    place = operations.number - shift
    is_inside = (place >= 0) & (place < len(calls.rows))
    if not is_inside.all() and not _are_outside(calls, operations, place)[~is_inside].all():
        first = int(np.flatnonzero(~is_inside)[0])
        return (
            f"operation {operations.number[first]} has no recorded call, of which there are "
            f"{len(calls.rows)}: the recording may lack the first ones (with "
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
    is_early = (issued >= 0) & (issued < issue - _TOLERANCE_NS)
    is_late = (issued >= 0) & (issued > end + _TOLERANCE_NS)
    is_over = (done >= 0) & (done < issue - _TOLERANCE_NS)
    for each in np.flatnonzero(is_known & (is_early | is_late | is_over))[:1].tolist():
        return f"operation {operations.number[own[each]]} was at another time than its call"
    return "" if len(own) else "all operations were outside of the recording"


def _are_outside(calls: CountedCalls, operations: _Operations, place: np.ndarray) -> np.ndarray:
    """Return whether each operation was issued before the recording began, or after it ended."""
    begin, end = calls.recorded
    issued = operations.issued
    is_before = (place < 0) & (issued < begin + _TOLERANCE_NS)
    is_after = (place >= 0) & (issued > end - _TOLERANCE_NS)
    return (issued >= 0) & (is_before | is_after)


def _shift_by_times(calls: CountedCalls, operations: _Operations) -> int | None:
    """Return the only shift that fits, by the times at which operations were issued.

    None if times are unknown, or if none or several fit.
    """
    issued = operations.issued
    if not len(calls.rows) or (issued < 0).any() or (calls.issue < 0).any():
        return None
    in_time = (issued >= calls.issue[0] - _TOLERANCE_NS) & (issued <= calls.end[-1] + _TOLERANCE_NS)
    if not in_time.any():
        return None
    first = int(np.flatnonzero(in_time)[0])
    begin, end = np.searchsorted(
        calls.issue,
        [issued[first] - _TOLERANCE_NS - _longest(calls), issued[first] + _TOLERANCE_NS],
    )
    tried = operations.number[first] - np.arange(begin, min(end, begin + _MOST_TRIED))
    fitting = [
        shift for shift in tried[tried > 0].tolist() if not _contradiction(calls, operations, shift)
    ]
    return fitting[0] if len(fitting) == 1 and end - begin <= _MOST_TRIED else None


def _longest(calls: CountedCalls) -> int:
    return int((calls.end - calls.issue).max())


def _assigned(groups: Sequence[_Group]) -> dict[str, str]:
    """Return the recorded group of each group that fits no other one, and that no other one fits.

    Not by elimination: the group that is left may be none of the recorded ones.
    """
    claims = Counter(name for group in groups for name in group.fitting)
    chosen: dict[str, str] = {}
    for group in groups:
        names = sorted(group.fitting)
        if len(names) == 1 and claims[names[0]] == 1:
            chosen[group.name] = names[0]
        elif len(names) == 1:
            group.reason = f"it fits recorded group {names[0]}, as another group does"
        elif names:
            group.reason = f"it fits several recorded groups: {', '.join(names)}"
    return chosen


def _with_times(
    recorded: RecordedCalls, groups: Mapping[str, _Group], chosen: Mapping[str, str]
) -> tuple[Trace, int]:
    """Return the trace with the joined values, and the number of joined operations."""
    trace = recorded.trace
    comm = dict(trace.tables["comm"])
    numbers = {name: array("q", comm[name]) for name in ("device_ns", "channels")}
    words = {name: [*comm[name]] for name in ("algorithm", "protocol")}
    num_joined = 0
    for name, of_recording in chosen.items():
        group = groups[name]
        for (rank, counter), operations in group.operations.items():
            shift = group.fitting[of_recording][rank, counter]
            calls = recorded.counted(rank, of_recording, counter)
            rows = [] if isinstance(calls, str) else calls.rows.tolist()
            for timing in operations.timings:
                place = timing.number - shift
                if not 0 <= place < len(rows):
                    continue
                num_joined += 1
                row = rows[place]
                for column, values in (*numbers.items(), *words.items()):
                    value = getattr(timing, column)
                    if value not in (NOT_KNOWN, ""):
                        values[row] = value
    strings = StringTable([""])
    texts = {
        name: StringColumn(strings.codes(values), strings.strings) for name, values in words.items()
    }
    tables = {**trace.tables, "comm": {**comm, **numbers, **texts}}
    return replace(trace, tables=tables), num_joined
