"""Times on devices land at the recorded calls that ran them, or nowhere.

A program runs on real gloo ranks; its calls are exported as operations of NCCL with known times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze import CATALOG, load
from commtrace.errors import UsageError
from commtrace.importers import import_trace
from commtrace.schema import TABLES
from commtrace.tracefile import Trace, read_trace, trace_of_rows, write_trace
from tests.commtrace.importers.device_times.exported import Export, recorded_by, rows
from tests.commtrace.importers.flight_recorder.dumps import ALL, LEFT, RIGHT, Dump, write_dumps
from tests.commtrace.importers.flight_recorder.torchcomms_dumps import Comms, write_comms
from tests.commtrace.importers.inspector.layouts import LAYOUTS, InspectorLayout, Operation
from tests.commtrace.importers.kineto.profiles import write_profiles
from tests.commtrace.importers.kineto.rank_traces import RankTrace

NUM_RANKS = 4
PLAIN = next(layout for layout in LAYOUTS if not layout.is_verbose)
VERBOSE = next(layout for layout in LAYOUTS if layout.is_verbose)


class Block(nn.Module):
    def __init__(self, group: Any, half: Any, size: int) -> None:
        super().__init__()
        self.group, self.half, self.size = group, half, size

    def forward(self, step: int) -> None:
        dist.all_reduce(torch.ones(self.size + step), group=self.group)
        dist.all_gather_into_tensor(torch.ones(2 * 40), torch.ones(40), group=self.half)


def program(path: str) -> None:
    rank = dist.get_rank()
    halves = dist.new_group([0, 1]), dist.new_group([3, 2], sort_ranks=False)
    half = halves[rank // 2]
    twin: Any = dist.new_group(range(NUM_RANKS))
    model = nn.Sequential(Block(None, half, 100), Block(None, half, 300))
    with commtrace.record(path) as recording:
        for step in range(3):
            for block in model:
                block(step)
            dist.broadcast(torch.ones(7), 0, group=twin)
            dist.barrier()
            recording.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_by(program, NUM_RANKS, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def trace(recorded: Path) -> Trace:
    return read_trace(recorded)


def found(trace: Trace) -> dict[tuple[int, int], int]:
    return {(c.rank, c.id): c.device_ns for c in rows(trace, "comm") if c.device_ns >= 0}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_each_time_lands_at_its_call(
    layout: InspectorLayout, recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    export = Export(trace)
    joined = import_trace([export.write(tmp_path / "logs", layout)], recorded)
    assert found(joined) == export.device_ns
    assert len(found(joined)) == trace.num_rows("comm") == NUM_RANKS * 3 * 6
    # All else is as it was recorded.
    columns = {"device_ns", "algorithm", "protocol", "channels"}
    for before, after in zip(rows(trace, "comm"), rows(joined, "comm"), strict=True):
        kept = {name: getattr(before, name) for name in columns}
        assert after._replace(**kept) == before
    assert {c.algorithm for c in rows(joined, "comm")} == {"RING" if layout.has_algorithm else ""}
    assert joined.run["joined"][1] == "72 of 72 operations of NCCL Inspector were joined to calls"
    again = read_trace(write_trace(joined, tmp_path / "joined.json"))
    assert found(again) == export.device_ns


def test_modules_lines_and_steps_have_the_times_of_their_calls(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    export = Export(trace)
    frames = load(import_trace([export.write(tmp_path / "logs", PLAIN)], recorded))
    calls = rows(trace, "comm")
    for table, column in (
        ("by_module", "module"), ("by_source", "source_line"), ("by_step", "step"),
    ):  # fmt: skip
        name = "own_device_ns" if table == "by_module" else "device_ns"
        shown = CATALOG[table].function(frames).set_index(column)[name]
        for value in {getattr(call, column) for call in calls}:
            own = [export.device_ns[c.rank, c.id] for c in calls if getattr(c, column) == value]
            assert shown[value] == pytest.approx(sum(own) / NUM_RANKS)
    assert set(shown.index) == {0, 1, 2}


def test_samples_are_joined_to_the_calls_of_their_numbers(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    export = Export(trace)

    def some(operation: Operation) -> Operation | None:
        return operation if operation.number % 3 == 1 else None

    joined = import_trace([export.write(tmp_path / "logs", PLAIN, some)], recorded)
    kept = found(joined)
    assert 0 < len(kept) < len(export.device_ns)
    assert kept.items() <= export.device_ns.items()


def test_ranks_are_those_of_the_recording_by_host_and_process(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    # Without the communicator of all ranks, only the processes show which rank is which.
    ranks = rows(trace, "ranks")
    pids = {row.rank: row.pid for row in ranks}
    export = Export(trace)
    folder = export.write(
        tmp_path / "logs",
        PLAIN,
        lambda each: each if each.function == "AllGather" else None,
        pids=pids.__getitem__,
        host=ranks[0].host,
    )
    joined = import_trace([folder], recorded)
    gathered = {(c.rank, c.id) for c in rows(trace, "comm") if c.kind == "all_gather"}
    assert found(joined) == {key: export.device_ns[key] for key in gathered}
    assert joined.run["joined"][0] == "ranks of its files: as in the recording"


def test_ranks_in_another_order_are_another_group(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    # Group [3, 2] exported as [2, 3]: both ranks' sizes fit, but no recorded group has this order.
    groups = [
        row._replace(ranks="2,3") if row.ranks == "3,2" else row for row in rows(trace, "groups")
    ]
    swapped = Export(_with_groups(trace, groups))
    joined = import_trace([swapped.write(tmp_path / "logs", PLAIN)], recorded)
    halves = [c for c in rows(joined, "comm") if c.kind == "all_gather"]
    assert {c.rank: c.device_ns >= 0 for c in halves} == {0: True, 1: True, 2: False, 3: False}
    assert any("no recorded group has its ranks" in note for note in joined.run["joined"])


def _with_groups(trace: Trace, groups: list[Any]) -> Trace:
    tables = {name: rows(trace, name) for name in TABLES} | {"groups": groups}
    return trace_of_rows(trace.run, tables)


def _other_size(operation: Operation) -> Operation:
    is_it = (operation.function, operation.number) == ("AllReduce", 1)
    return replace(operation, size=operation.size + 4) if is_it else operation


def _beyond(operation: Operation) -> Operation:
    is_it = (operation.function, operation.number) == ("AllReduce", 8)
    return replace(operation, number=40) if is_it else operation


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_size, "operation 1 has 1,204 bytes, its call 1,200"),
        (_beyond, "operation 40 has no recorded call among 9:"),
    ],
)
def test_a_group_with_an_operation_that_does_not_fit_is_not_joined(
    change: Callable[[Operation], Operation], reason: str,
    recorded: Path, trace: Trace, tmp_path: Path,
) -> None:  # fmt: skip
    export = Export(trace)
    joined = import_trace([export.write(tmp_path / "logs", PLAIN, change)], recorded)
    kinds = {(c.rank, c.id): c.kind for c in rows(trace, "comm")}
    others = {key: ns for key, ns in export.device_ns.items() if kinds[key] in _ELSEWHERE}
    assert found(joined) == others
    assert any(reason in note for note in joined.run["joined"])


_ELSEWHERE = ("all_gather", "broadcast")
"""Kinds of the calls on groups without all-reduces."""


def test_groups_of_the_same_ranks_and_calls_are_not_guessed(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    calls = [c for c in rows(trace, "comm") if c.kind == "all_reduce"]
    names = sorted({row.name for row in rows(trace, "groups") if row.size == NUM_RANKS})
    # The all-reduces once more, on the second group of all ranks, a second later.
    twins = [
        c._replace(id=1000 + c.id, group=names[1], issue_ns=c.issue_ns + 1_000_000_000,
                   complete_ns=-1, result_used_ns=-1, wait_begin_ns=-1, seq=place % 6)
        for place, c in enumerate(calls)
    ]  # fmt: skip
    ones = [c._replace(seq=place % 6, group=names[0]) for place, c in enumerate(calls)]
    path = tmp_path / "twins.json"
    doubled = write_trace(with_calls(trace, [*ones, *twins]), path)
    export = Export(read_trace(doubled))
    alike = import_trace([export.write(tmp_path / "alike", PLAIN)], doubled)
    assert found(alike) == {}
    notes = [note for note in alike.run["joined"] if "fits several recorded groups" in note]
    assert len(notes) == 2
    # By the times at which they were issued, they differ.
    timed = import_trace([export.write(tmp_path / "timed", VERBOSE)], doubled)
    assert found(timed) == export.device_ns


def with_calls(trace: Trace, calls: list[Any]) -> Trace:
    return trace_of_rows(trace.run, {name: rows(trace, name) for name in TABLES} | {"comm": calls})


def test_no_group_is_joined_by_elimination(recorded: Path, trace: Trace, tmp_path: Path) -> None:
    # A second communicator of the same ranks has the first operations only, which fit as well.
    export = Export(trace)
    others = Export(trace, ids={name: f"{hex(0xB0 + n)}" for n, name in enumerate(_names(trace))})
    folder = export.write(tmp_path / "logs", PLAIN)
    first = others.write(
        tmp_path / "others", PLAIN, lambda each: each if each.number == 0 else None
    )
    for path in folder.iterdir():
        with path.open("a") as stream:
            stream.write((first / path.name).read_text())
    joined = import_trace([folder], recorded)
    assert found(joined) == {}
    assert sum("as another group does" in note for note in joined.run["joined"]) == 8


def _names(trace: Trace) -> list[str]:
    return [row.name for row in rows(trace, "groups")]


def test_a_recording_of_some_steps_is_not_joined(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    sampled = Trace({**trace.run, "every": 2}, trace.tables)
    path = write_trace(sampled, tmp_path / "sampled.json")
    joined = import_trace([Export(trace).write(tmp_path / "logs", PLAIN)], path)
    assert found(joined) == {}
    assert any("not every step was recorded" in note for note in joined.run["joined"])


def test_a_recording_that_began_late_needs_times(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    apart = with_calls(
        trace, [c._replace(issue_ns=c.issue_ns + c.seq * 10**9, complete_ns=-1, result_used_ns=-1,
                           wait_begin_ns=-1) for c in rows(trace, "comm")],
    )  # fmt: skip
    path = write_trace(apart, tmp_path / "late.json")
    export = Export(read_trace(path), late=5)
    plain = import_trace([export.write(tmp_path / "plain", PLAIN)], path)
    assert found(plain) == {}
    timed = import_trace([export.write(tmp_path / "timed", VERBOSE)], path)
    assert found(timed) == export.device_ns
    assert any("lacks the first 5 calls" in note for note in timed.run["joined"])


def test_calls_of_several_operations_are_not_counted(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    calls = [
        c._replace(native_op="c10d::allreduce_coalesced_") if c.kind == "all_reduce" else c
        for c in rows(trace, "comm")
    ]
    path = write_trace(with_calls(trace, calls), tmp_path / "coalesced.json")
    joined = import_trace([Export(trace).write(tmp_path / "logs", PLAIN)], path)
    assert {c.kind for c in rows(joined, "comm") if c.device_ns >= 0} == {*_ELSEWHERE}
    assert any("coalesced, or of uneven parts" in note for note in joined.run["joined"])


def test_a_profile_is_not_joined(recorded: Path, tmp_path: Path) -> None:
    write_profiles(tmp_path / "profiles", [RankTrace(0)])
    with pytest.raises(UsageError, match=r"files of torch\.profiler to be joined"):
        import_trace([tmp_path / "profiles"], recorded)


def as_recorded(trace: Trace) -> Trace:
    """An import as a recording: calls with modules and without times on devices."""
    calls = [c._replace(device_ns=-1, module=f"m{c.id}", seq=-1) for c in rows(trace, "comm")]
    places: dict[tuple[int, str], int] = {}
    numbered = []
    for c in calls:
        place = places.get((c.rank, c.group), 0)
        places[c.rank, c.group] = place + 1
        numbered.append(c._replace(seq=place))
    return with_calls(trace, numbered)


def _dumps() -> list[Dump]:
    dumps = [Dump(rank) for rank in range(4)]
    for dump in dumps:
        half = LEFT if dump.rank < 2 else RIGHT
        for number in range(5):
            lasts = 0.1 * (1 + number + 10 * dump.rank)
            dump.call("all_reduce", sizes=[[number + 1, 4]], duration_ms=lasts)
            dump.call("_all_gather_base", half, sizes=[[4]], out=[[8]], duration_ms=lasts + 0.05)
    return dumps


def test_operations_of_a_group_of_one_rank_are_joined_if_the_tool_counts_them(
    tmp_path: Path,
) -> None:
    dump = Dump(0, ranks={ALL: [0]}).call("all_reduce", duration_ms=0.5)
    whole = import_trace([write_dumps(tmp_path / "whole", [dump])])
    path = write_trace(as_recorded(whole), tmp_path / "run.json")
    joined = import_trace([write_dumps(tmp_path / "dumps", [dump])], path)
    assert found(joined) == {(0, 0): 500_000}


@pytest.mark.parametrize("last", [None, 4])
def test_durations_of_dumps_land_at_the_calls_of_a_recording(
    last: int | None, tmp_path: Path
) -> None:
    whole = import_trace([write_dumps(tmp_path / "whole", _dumps())])
    path = write_trace(as_recorded(whole), tmp_path / "run.json")
    joined = import_trace([write_dumps(tmp_path / "dumps", _dumps(), last=last)], path)
    calls = rows(joined, "comm")
    lasts = {(c.rank, c.id): c.device_ns for c in rows(whole, "comm")}
    first = 0 if last is None else 10 - last
    assert found(joined) == {key: ns for key, ns in lasts.items() if key[1] >= first}
    assert lasts[3, 0] == 3_100_000
    assert {c.module for c in calls} == {f"m{number}" for number in range(10)}


def test_durations_of_torchcomms_are_those_of_devices_only(tmp_path: Path) -> None:
    groups: dict[str, Sequence[int]] = {"main": (0, 1), "half": (0, 1)}
    dumps = [Comms(rank, groups) for rank in range(2)]
    for dump in dumps:
        dump.call("all_reduce", "main").call("all_reduce", "half", end="retired")
        dump.call("send", "main").call("broadcast", "half")
        # Retired before the end was noticed: the host has measured this duration.
        dump.call("reduce", "half").entries[-1]["time_discovered_completed_ns"] = None
    whole = import_trace([write_comms(tmp_path / "dumps", dumps)])
    path = write_trace(as_recorded(whole), tmp_path / "run.json")
    joined = import_trace([tmp_path / "dumps"], path)
    assert found(joined) == {(rank, n): 2_500_000 for rank in range(2) for n in (0, 3)}
    assert any("send of an unknown peer or size" in note for note in joined.run["joined"])


def test_a_dump_of_other_kinds_is_not_joined(tmp_path: Path) -> None:
    whole = import_trace([write_dumps(tmp_path / "dumps", _dumps())])
    recorded = as_recorded(whole)
    others = {"all_reduce": "all_to_all"}
    calls = [c._replace(kind=others.get(c.kind, c.kind)) for c in rows(recorded, "comm")]
    path = write_trace(with_calls(recorded, calls), tmp_path / "run.json")
    joined = import_trace([tmp_path / "dumps"], path)
    assert {c.kind for c in rows(joined, "comm") if c.device_ns >= 0} == {"all_gather"}
    assert any("operation 0 is all_reduce, its call all_to_all" in n for n in joined.run["joined"])
