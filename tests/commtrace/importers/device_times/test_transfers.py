"""Times of sends and receives land at the recorded calls that ran them, or nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.importers import import_trace
from commtrace.tracefile import Trace, read_trace, trace_of_rows, write_trace
from tests.commtrace.importers.device_times.exported import Export, recorded_by, rows
from tests.commtrace.importers.device_times.test_joining import as_recorded, found, with_calls
from tests.commtrace.importers.flight_recorder.dumps import Dump, write_dumps
from tests.commtrace.importers.inspector.layouts import LAYOUTS, InspectorLayout, Operation

NUM_RANKS = 3
PLAIN = next(each for each in LAYOUTS if each.has_p2p and not each.is_verbose)
VERBOSE = next(each for each in LAYOUTS if each.is_verbose)


def program(path: str) -> None:
    """Stages pass on activations and gradients; two of them also exchange larger tensors."""
    rank = dist.get_rank()
    pair: Any = dist.new_group([2, 0], sort_ranks=False)
    with commtrace.record(path):
        for _ in range(3):
            for size in (10, 20):
                if rank > 0:
                    dist.recv(torch.empty(size), rank - 1)
                if rank < NUM_RANKS - 1:
                    dist.send(torch.ones(size), rank + 1)
            if rank != 1:
                other = 2 - rank
                transfers = [
                    dist.P2POp(dist.isend, torch.ones(50), other, group=pair),
                    dist.P2POp(dist.irecv, torch.empty(50), other, group=pair),
                ]
                for work in dist.batch_isend_irecv(transfers):
                    work.wait()
            dist.all_reduce(torch.ones(4))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_by(program, NUM_RANKS, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def trace(recorded: Path) -> Trace:
    return read_trace(recorded)


@pytest.mark.parametrize(
    "layout", [each for each in LAYOUTS if each.has_p2p], ids=lambda layout: layout.name
)
def test_each_time_lands_at_its_call(
    layout: InspectorLayout, recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    export = Export(trace)
    joined = import_trace([export.write(tmp_path / "logs", layout)], recorded)
    assert found(joined) == export.device_ns
    # Of each step: four sends and receives, two of each of the pair, and three all-reduces.
    assert len(found(joined)) == trace.num_rows("comm") == 3 * (8 + 4 + 3)


def _without_first(operation: Operation) -> Operation | None:
    """Leave out the first transfer of each group."""
    return operation if operation.number or not operation.is_p2p else None


def _without_a_middle_one(operation: Operation) -> Operation | None:
    """Leave out the third transfer of each group, which is the last of the pair."""
    return operation if operation.number != 2 or not operation.is_p2p else None


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (_without_first, ["transfers without times, which may not be the first transfers"]),
        (
            _without_a_middle_one,
            [
                "transfers with gaps in the tool's numbering",
                "the recording has more or fewer transfers",
            ],
        ),
    ],
)
def test_transfers_of_which_some_have_no_line_are_not_joined_by_their_order(
    change: Callable[[Operation], Operation | None], reasons: list[str],
    recorded: Path, trace: Trace, tmp_path: Path,
) -> None:  # fmt: skip
    export = Export(trace)
    joined = import_trace([export.write(tmp_path / "logs", PLAIN, change)], recorded)
    assert {c.kind for c in rows(joined, "comm") if c.device_ns >= 0} == {"all_reduce"}
    notes = "\n".join(joined.run["joined"])
    assert all(reason in notes for reason in reasons)


def test_without_times_a_recording_that_may_have_begun_late_is_not_joined(
    recorded: Path, trace: Trace, tmp_path: Path
) -> None:
    def of_transfers(operation: Operation) -> Operation | None:
        return operation if operation.is_p2p else None

    joined = import_trace([Export(trace).write(tmp_path / "logs", PLAIN, of_transfers)], recorded)
    assert found(joined) == {}


@pytest.mark.parametrize("seed", range(20))
def test_no_time_lands_at_another_call(seed: int, trace: Trace, tmp_path: Path) -> None:
    """Both lack some calls at random; some of these are 25 ms apart, some 1 ms."""
    chance = random.Random(seed)
    gaps = {call: chance.choice((10**6, 25 * 10**6)) for call in range(100)}
    apart = [
        c._replace(
            issue_ns=c.issue_ns + sum(gaps[each] for each in range(c.id)),
            complete_ns=-1, result_used_ns=-1, wait_begin_ns=-1,
        )
        for c in rows(trace, "comm")
    ]  # fmt: skip
    export = Export(with_calls(trace, apart))
    lost = {each for each in range(6) if chance.random() < 0.15}

    def some(operation: Operation) -> Operation | None:
        return None if operation.number in lost else operation

    logs = export.write(tmp_path / "logs", chance.choice((PLAIN, VERBOSE)), some)
    begin = chance.randrange(10)
    path = tmp_path / "late.json"
    write_trace(with_calls(trace, [c for c in apart if c.id >= begin or c.seq >= 0]), path)
    joined = import_trace([logs], path)
    assert found(joined).items() <= export.device_ns.items()


def _apart(trace: Trace) -> Trace:
    """The calls, each a second after the call before it."""
    late = [
        c._replace(
            issue_ns=c.issue_ns + c.id * 10**9, complete_ns=-1, result_used_ns=-1, wait_begin_ns=-1
        )
        for c in rows(trace, "comm")
    ]
    return with_calls(trace, late)


def test_a_part_is_joined_by_its_times(trace: Trace, tmp_path: Path) -> None:
    path = write_trace(_apart(trace), tmp_path / "apart.json")
    export = Export(read_trace(path))
    logs = export.write(tmp_path / "logs", VERBOSE, _without_first)
    joined = import_trace([logs], path)
    assert found(joined).items() <= export.device_ns.items()
    first = {
        (c.rank, c.group, c.kind): c.id
        for c in reversed(rows(trace, "comm"))
        if c.kind in ("send", "recv")
    }
    lost = {(rank, each) for (rank, _, _), each in first.items()}
    assert found(joined).keys() == export.device_ns.keys() - lost


def test_a_recording_that_dropped_calls_has_no_order(trace: Trace, tmp_path: Path) -> None:
    ranks = [row._replace(num_dropped=1) for row in rows(trace, "ranks")]
    tables = {name: rows(trace, name) for name in trace.tables} | {"ranks": ranks}
    path = write_trace(trace_of_rows(trace.run, tables), tmp_path / "run.json")
    joined = import_trace([Export(trace).write(tmp_path / "logs", PLAIN)], path)
    assert {c.kind for c in rows(joined, "comm") if c.device_ns >= 0} == {"all_reduce"}
    assert any("not every call was recorded" in note for note in joined.run["joined"])


def test_durations_of_dumps_land_at_their_transfers(tmp_path: Path) -> None:
    sender, receiver = Dump(0), Dump(1)
    for number in range(4):
        sender.call("send 0->1", sizes=[[8]], duration_ms=0.1 * (1 + number))
        receiver.call("recv 1<-0", sizes=[[8]], duration_ms=0.2 * (1 + number))
    dumps = [sender, receiver]
    whole = import_trace([write_dumps(tmp_path / "whole", dumps)])
    path = write_trace(as_recorded(whole), tmp_path / "run.json")
    joined = import_trace([write_dumps(tmp_path / "dumps", dumps)], path)
    assert found(joined) == {(c.rank, c.id): c.device_ns for c in rows(whole, "comm")}
    assert len(found(joined)) == 8


def test_transfers_at_other_times_are_not_joined(trace: Trace, tmp_path: Path) -> None:
    path = write_trace(_apart(trace), tmp_path / "apart.json")
    joined = import_trace([Export(trace).write(tmp_path / "logs", VERBOSE)], path)
    assert not {c.kind for c in rows(joined, "comm") if c.device_ns >= 0} & {"send", "recv"}
    (note,) = [note for note in joined.run["joined"] if "transfers at other times" in note]
    assert note.endswith("(first: send of 40 bytes from rank 0 to rank 1)")
