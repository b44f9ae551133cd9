"""Times on devices that another tool measured, joined to the calls of a recording.

    import_trace(["nccl-inspector-42/"], recording="run.json")

An operation belongs to the call of the same rank and group with the same number among the calls
that the tool counts (`timings`). A group of the tool's is joined to the recorded group with the
same ranks if all of its operations fit: for each there is a call of the same number, kind and size
that was issued before the operation ended. If any does not fit, the group is not joined; nor is it
if several recorded groups fit, or if several groups of the tool's fit the same recorded group.

The numbers count from the creation of the group. A recording that began later lacks the first
calls; how many is known if the tool states when operations were issued (`comparison`). Sends and
receives have no such numbers (`transfers`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from commtrace.importers.device_times.comparison import (
    Operations,
    contradiction,
    operations_of,
    pairs,
    shift_by_times,
)
from commtrace.importers.device_times.recorded_calls import RecordedCalls
from commtrace.importers.device_times.timings import (
    COLLECTIVES,
    COUNTERS,
    KnownGroup,
    Timing,
    Timings,
)
from commtrace.importers.device_times.transfers import join_transfers
from commtrace.torch_names import NOT_KNOWN, TRANSFERS
from commtrace.tracefile.trace import StringColumn, StringTable, Trace
from commtrace.units import counted


@dataclass(frozen=True, slots=True)
class JoinedRecording:
    """A recording with times of devices.

    Attributes:
        trace: The recording.
        notes: Sentences on what could be joined and what not, with the reason.
    """

    trace: Trace
    notes: list[str]


_Of = tuple[int, str]
"""Rank and counter."""


@dataclass(slots=True)
class _Group:
    """A group of the tool's: its operations, and the recorded groups that fit, with shifts."""

    name: str
    operations: dict[_Of, Operations]
    fitting: dict[str, dict[_Of, int]] = field(default_factory=dict)
    reason: str = ""

    @property
    def num_operations(self) -> int:
        return sum(len(each.timings) for each in self.operations.values())


def join_timings(recording: Trace, timings: Timings, source: str) -> JoinedRecording:
    """Return the recording with the times of the operations of the tool `source`."""
    operations = list(timings.operations)
    found, left = _operations(timings.groups, operations)
    recorded = RecordedCalls(recording)
    for group in found.values():
        _try(group, recorded, timings.groups[group.name])
    chosen = _assigned(list(found.values()))
    transfers = [each for each in operations if each.counter in TRANSFERS]
    joined, left_transfers = join_transfers(recorded, transfers, _from_start(found, chosen))
    joined += _joined(recorded, found, chosen)
    num = f"{len(joined):,} of {counted(len(operations), 'operation')}"
    notes = [f"{num} of {source} were joined to calls"]
    notes += [_note(group, chosen) for group in found.values()]
    notes += [
        f"{counted(num, 'operation')} not joined: {text}"
        for text, num in (left + left_transfers).items()
    ]
    trace = _with_times(recording, joined)
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


def _operations(
    groups: Mapping[str, KnownGroup], operations: Iterable[Timing]
) -> tuple[dict[str, _Group], Counter[str]]:
    """Return the collectives by group, and how many cannot be joined, by reason."""
    left: Counter[str] = Counter()
    by_group: dict[str, dict[_Of, list[Timing]]] = {}
    for each in operations:
        if each.counter in TRANSFERS:
            continue
        if each.counter not in COUNTERS:
            left[f"{each.counter}: its numbers do not count the calls of torch"] += 1
        elif groups[each.group].size == 1 and each.counter != COLLECTIVES:
            left["NCCL does not count the operations of a group of a single rank"] += 1
        else:
            of_group = by_group.setdefault(each.group, {})
            of_group.setdefault((each.rank, each.counter), []).append(each)
    found = {
        name: _Group(name, {key: operations_of(own) for key, own in of_group.items()})
        for name, of_group in by_group.items()
    }
    return found, left


def _try(group: _Group, recorded: RecordedCalls, known: KnownGroup) -> None:
    """Set the recorded groups that fit, or the reason why none does."""
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
    recorded: RecordedCalls, name: str, rank: int, counter: str, operations: Operations
) -> int | str:
    """Return how many first calls the recording lacks, or why the operations do not fit it."""
    calls = recorded.counted(rank, name, counter)
    if isinstance(calls, str):
        return calls
    reason = contradiction(calls, operations, 0)
    if not reason:
        return 0
    shift = shift_by_times(calls, operations, least=1)
    return reason if shift is None else shift


def _assigned(groups: Sequence[_Group]) -> dict[str, str]:
    """Return the recorded group of each group, if each of the two fits only the other.

    Not by elimination: the group that is left may not be recorded.
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


def _from_start(groups: Mapping[str, _Group], chosen: Mapping[str, str]) -> set[int]:
    """Return the ranks whose recording begins with the first call of each joined group."""
    lacking: dict[int, int] = {}
    for name, of_recording in chosen.items():
        for (rank, _), shift in groups[name].fitting[of_recording].items():
            lacking[rank] = max(shift, lacking.get(rank, 0))
    return {rank for rank, shift in lacking.items() if shift == 0}


def _joined(
    recorded: RecordedCalls, groups: Mapping[str, _Group], chosen: Mapping[str, str]
) -> list[tuple[int, Timing]]:
    """Return the row in `comm` of each operation that has a call."""
    joined: list[tuple[int, Timing]] = []
    for name, of_recording in chosen.items():
        group = groups[name]
        for (rank, counter), operations in group.operations.items():
            calls = recorded.counted(rank, of_recording, counter)
            if not isinstance(calls, str):
                shift = group.fitting[of_recording][rank, counter]
                joined += pairs(calls, operations, shift)
    return joined


def _with_times(trace: Trace, joined: Iterable[tuple[int, Timing]]) -> Trace:
    """Return the trace with the values of the operations in their rows."""
    comm = dict(trace.tables["comm"])
    numbers = {name: array("q", comm[name]) for name in ("device_ns", "channels")}
    words = {name: [*comm[name]] for name in ("algorithm", "protocol")}
    for row, timing in joined:
        for column, values in (*numbers.items(), *words.items()):
            value = getattr(timing, column)
            if value not in (NOT_KNOWN, ""):
                values[row] = value
    strings = StringTable([""])
    texts = {
        name: StringColumn(strings.codes(values), strings.strings) for name, values in words.items()
    }
    return replace(trace, tables={**trace.tables, "comm": {**comm, **numbers, **texts}})
