"""`commtrace.record`: as a context manager and a decorator, in memory and to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace import session
from commtrace.errors import RecordingError, UsageError
from commtrace.recorder import RECORDER
from commtrace.tracefile import read_trace
from dtensor_core.testing import fake_world, run_processes
from tests.commtrace.recorder.recorded import calls, ops, steps

ROOT = Path(__file__).parents[2]


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(2):
        yield


def test_counts_and_sums_are_at_hand(world: None) -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(8))
        dist.all_reduce(torch.ones(8))
        dist.barrier()
    assert recording.counts() == {"all_reduce": 2, "barrier": 1}
    assert recording.counts("dtype") == {"float32": 2, "": 1}
    assert (recording.total(), recording.total("payload_bytes")) == (3, 64)
    counts = recording.counts()
    assert counts["send"] == 0
    assert "send" not in counts  # asking changes nothing


def test_a_table_is_a_data_frame(world: None) -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(8))
    assert list(recording.table()["payload_bytes"]) == [32]
    assert list(recording.table("groups")["ranks"]) == ["0,1"]


def test_a_saved_recording_reads_back(world: None, tmp_path: Path) -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(8))
    trace = read_trace(recording.save(tmp_path / "run.json"))
    assert trace.tables == recording.trace().tables
    assert trace.run["missing_ranks"] == [1]


def test_what_is_recorded_can_be_read_while_it_is_recorded(world: None) -> None:
    with commtrace.record() as recording:
        for number in range(3):
            dist.barrier()
            assert recording.total() == number + 1


def test_recording_without_a_process_group_works_and_says_so() -> None:
    with commtrace.record() as recording:
        torch.ones(2).add(1)
    trace = recording.trace()
    assert (trace.run["world_size"], trace.run["process_group"]) == (1, "none")
    assert (recording.total(), len(ops(recording))) == (0, 2)


def test_a_process_group_made_while_recording_is_found_out_about() -> None:
    with commtrace.record() as recording, fake_world(4, rank=3):
        dist.barrier()
    trace = recording.trace()
    assert (trace.run["world_size"], trace.run["process_group"]) == (4, "fake")
    assert list(trace.tables["ranks"]["rank"]) == [3]


def test_the_run_tells_what_it_ran_on() -> None:
    with commtrace.record(detail="collective") as recording:
        pass
    run = recording.trace().run
    assert run["torch"] == torch.__version__
    assert run["python"] == ".".join(map(str, sys.version_info[:3]))
    assert run["detail"] == "collective"
    assert run["created"].endswith("+00:00")


def test_an_unknown_detail_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        commtrace.record(detail="everything")
    assert str(error.value) == (
        "cannot record with detail 'everything'\n  why: a detail is one of 'op', 'collective'"
    )


def test_a_recording_that_has_not_begun_has_no_trace_and_no_step() -> None:
    with pytest.raises(RecordingError, match="there is no trace yet"):
        commtrace.record().counts()
    with pytest.raises(RecordingError, match="there is no step to end"):
        commtrace.record().step()


# Entering


def test_a_recording_entered_inside_of_itself_goes_on(world: None) -> None:
    with commtrace.record() as recording:
        with recording:
            dist.barrier()
        dist.barrier()
    assert recording.total() == 2


def test_a_recording_entered_again_goes_on_where_it_stopped(world: None) -> None:
    recording = commtrace.record()
    for _ in range(2):
        with recording:
            dist.barrier()
        dist.barrier()  # is not recorded
    assert [(event.id, event.seq, event.step) for event in calls(recording)] == [
        (0, 0, 0), (1, 1, 1),
    ]  # fmt: skip


def test_a_recording_inside_of_another_has_numbers_of_its_own(world: None) -> None:
    with commtrace.record() as outer:
        dist.barrier()
        outer.step()
        with commtrace.record() as inner:
            dist.barrier()
            inner.step()
            dist.barrier()
        dist.barrier()
    assert [(event.id, event.seq, event.step) for event in calls(inner)] == [(0, 0, 0), (1, 1, 1)]
    assert [(event.id, event.seq, event.step) for event in calls(outer)] == [
        (0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 2),
    ]  # fmt: skip


def test_recordings_that_overlap_each_keep_what_happens_while_they_are_on(world: None) -> None:
    first, second = commtrace.record(detail="collective"), commtrace.record(detail="collective")
    first.__enter__()
    dist.barrier()
    second.__enter__()
    dist.barrier()
    first.__exit__(None, None, None)
    dist.barrier()
    second.__exit__(None, None, None)
    assert (first.total(), second.total()) == (2, 2)
    assert RECORDER.buffers == ()


def test_regions_name_what_is_in_them_and_nest(world: None) -> None:
    with commtrace.record() as recording:
        with recording.region("outer"):
            with recording.region("inner"):
                dist.barrier()
            dist.barrier()
        dist.barrier()
    assert [event.region for event in calls(recording)] == ["inner", "outer", ""]


def test_a_region_that_is_left_by_an_exception_is_left(world: None) -> None:
    with commtrace.record() as recording:
        with pytest.raises(KeyError), recording.region("outer"):
            raise KeyError
        dist.barrier()
    assert [event.region for event in calls(recording)] == [""]


def test_a_decorated_function_is_recorded_at_each_call(world: None) -> None:
    recording = commtrace.record()

    @recording
    def train(times: int) -> int:
        for _ in range(times):
            dist.barrier()
        return times

    assert train(2) == 2
    assert train(1) == 1
    assert recording.total() == 3


def test_a_function_decorated_with_a_file_writes_it_at_each_call(
    world: None, tmp_path: Path
) -> None:
    @commtrace.record(tmp_path / "run.json")
    def train(times: int) -> None:
        for _ in range(times):
            dist.barrier()

    for times in (2, 1):
        train(times)
        assert read_trace(tmp_path / "run.json").num_rows("comm") == times


def test_operators_beyond_the_bound_are_counted() -> None:
    with commtrace.record(max_calls=1) as recording:
        for _ in range(12):
            torch.ones(1)
    assert [op.id for op in ops(recording)] == list(range(10))
    assert list(recording.trace().tables["ranks"]["num_ops_dropped"]) == [2]


# Files


def test_a_recording_of_one_rank_is_a_file_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with commtrace.record(path) as recording:
        torch.ones(2)
        assert [each.name for each in tmp_path.iterdir()] == ["run.json.spools"]
    assert list(tmp_path.iterdir()) == [path]
    assert read_trace(path).tables == recording.trace().tables
    with pytest.raises(RecordingError, match="its file has been written"):
        recording.__enter__()


def test_a_folder_that_cannot_be_written_to_is_told_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recording = commtrace.record(tmp_path / "file" / "run.json")
    with pytest.raises(RecordingError, match="cannot begin to record"), recording:
        pass
    assert RECORDER.buffers == ()


def record_on_every_rank(folder: str) -> int:
    with commtrace.record(Path(folder) / "run.json") as recording:
        for _ in range(3):
            dist.all_reduce(torch.ones(4))
            recording.step()
    dist.barrier()
    return recording.total()  # its own part, though rank 0 has removed the spools


def test_the_recordings_of_all_ranks_are_joined_in_one_file(tmp_path: Path) -> None:
    assert run_processes(record_on_every_rank, 3, str(tmp_path)) == [3, 3, 3]
    trace = read_trace(tmp_path / "run.json")
    assert list(trace.tables["comm"]["rank"]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    for seq in range(3):  # what happened at once is at once on the common scale
        rows = [row for row in calls_of(trace) if row.seq == seq]
        assert max(row.issue_ns for row in rows) < min(row.complete_ns for row in rows)


def calls_of(trace: commtrace.Trace) -> list[Any]:
    from commtrace.event import CommEvent

    return [CommEvent(*row) for row in trace.rows("comm")]


def test_a_rank_that_records_alone_does_not_wait_for_the_others(tmp_path: Path) -> None:
    run_processes(record_on_rank_0_only, 2, str(tmp_path), timeout_s=20)
    trace = read_trace(tmp_path / "run.json")
    assert (trace.run["world_size"], trace.run["missing_ranks"]) == (2, [1])


def record_on_rank_0_only(folder: str) -> None:
    if dist.get_rank() == 0:
        with commtrace.record(Path(folder) / "run.json"):
            dist.barrier()
    else:
        dist.barrier()


KILLED = """
import os, signal, sys, time, torch, torch.distributed as dist, commtrace
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
with commtrace.record(sys.argv[1]) as recording:
    while True:
        dist.barrier()
        recording.step()
        time.sleep(0.001)
        print(".", end="", flush=True)
"""


def test_a_killed_process_leaves_all_but_its_last_second(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "run.json")],
        cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        process.stdout.read(1)
        time.sleep(2.0)
    finally:
        process.send_signal(signal.SIGKILL)
    num_made = 1 + len(process.stdout.read())
    process.stdout.close()
    process.wait(timeout=30)
    trace = read_trace(tmp_path / "run.json.spools")
    num_kept = trace.num_rows("comm")
    assert num_kept > num_made / 3
    assert list(trace.tables["comm"]["id"]) == list(range(num_kept))
    assert trace.run["torn_ranks"] == [0]


def test_a_forked_child_is_no_part_of_the_recording(world: None) -> None:
    with commtrace.record(detail="collective") as recording:
        dist.barrier()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                dist.barrier()
                recording.__exit__(None, None, None)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recording.total() == 1


# In a process that `commtrace run` started


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[commtrace.Recording]:
    monkeypatch.setattr(session, "_launched", None)
    with session.record_launched(tmp_path / "spools", "collective", stacks=False) as recording:
        yield recording


def test_a_scripts_own_recording_joins_the_one_of_its_process(
    launched: commtrace.Recording, world: None, tmp_path: Path
) -> None:
    dist.barrier()
    with commtrace.record(tmp_path / "own.json") as recording:
        dist.barrier()
        recording.step()
        with recording.region("here"):
            dist.barrier()
    dist.barrier()
    assert recording.total() == 2
    assert not (tmp_path / "own.json").exists()
    assert [(event.step, event.region) for event in calls(launched)] == [
        (-1, ""), (0, ""), (1, "here"), (-1, ""),
    ]  # fmt: skip
    assert [row.step for row in steps(launched)] == [0, 1]
