"""`commtrace.record` as a context manager and a decorator, in memory and to a file."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace import session
from commtrace.errors import NotATraceError, RecordingError, UsageError
from commtrace.event import CommEvent, RankRow
from commtrace.process_options import ProcessOptions
from commtrace.recorder import RECORDER, listening
from commtrace.torch_internals.dispatcher import TorchDispatchMode, current_mode
from commtrace.tracefile import read_trace
from commtrace.tracefile.destinations import SpoolFolder
from dtensor_core.testing import fake_world, run_processes
from dtensor_core.torch_internals.dispatcher import mode_flags, set_mode_flags
from tests.commtrace.recorder.recorded import calls, ops, steps

pytestmark = pytest.mark.usefixtures("preloaded")

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
    assert "send" not in counts  # reading does not add the key


def test_its_repr_says_where_it_goes_and_how_far_it_is(world: None, tmp_path: Path) -> None:
    path = tmp_path / "a\x1bb.json"
    recording = commtrace.record(path)
    shown = str(path).replace("\x1b", "\\x1b")
    assert repr(recording) == f"<commtrace.Recording to {shown}, not begun, detail op>"
    with recording:
        dist.all_reduce(torch.ones(2))
        assert repr(recording).endswith(", on, 1 call of rank 0, detail op>")
    assert repr(recording).endswith(", written, 1 call of rank 0, detail op>")
    with commtrace.record(detail="collective") as in_memory:
        pass
    assert repr(in_memory) == (
        "<commtrace.Recording in memory, paused, 0 calls of rank 0, detail collective>"
    )


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
    assert trace.run["missing_ranks"] == []


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


def test_the_run_has_facts_about_its_environment() -> None:
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


_OF_OPERATORS: list[dict[str, Any]] = [
    {"detail": "op"},
    {"detail": "collective", "values": "op"},
    {"detail": "op", "values": "op"},
    {"detail": "op", "values": "op", "every": 2},
]


@pytest.mark.parametrize("of_second", _OF_OPERATORS)
@pytest.mark.parametrize("of_first", _OF_OPERATORS)
def test_recordings_of_operators_that_overlap_each_keep_theirs(
    of_first: dict[str, Any], of_second: dict[str, Any]
) -> None:
    first, second = commtrace.record(**of_first), commtrace.record(**of_second)
    flags = mode_flags()
    first.__enter__()
    torch.ones(2)
    second.__enter__()
    torch.ones(2)
    first.__exit__(None, None, None)
    torch.ones(2)
    second.__exit__(None, None, None)
    assert (current_mode(), mode_flags()) == (None, flags)
    for recording, options in ((first, of_first), (second, of_second)):
        trace = recording.trace()
        assert trace.num_rows("ops") == (2 if options["detail"] == "op" else 0)
        assert trace.num_rows("fingerprints") == (2 if "values" in options else 0)


def test_a_mode_that_is_entered_in_a_recording_may_outlive_it() -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    mode, flags = Mode(), mode_flags()
    with commtrace.record(values="op"):
        mode.__enter__()
    assert current_mode() is mode
    mode.__exit__(None, None, None)
    assert current_mode() is None
    set_mode_flags(flags)  # torch restores them in the reverse order only


def test_regions_name_what_is_in_them_and_nest(world: None) -> None:
    with commtrace.record() as recording:
        with recording.region("outer"):
            with recording.region("inner"):
                dist.barrier()
            dist.barrier()
        dist.barrier()
    assert [event.region for event in calls(recording)] == ["inner", "outer", ""]


def test_regions_of_generators_end_in_any_order(world: None) -> None:
    def batches(name: str) -> Iterator[None]:
        with recording.region(name):
            yield

    with commtrace.record() as recording:
        first, second = batches("first"), batches("second")
        next(first), next(second)
        for ended in (first, second):
            list(ended)
            dist.barrier()
    assert [event.region for event in calls(recording)] == ["second", ""]


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


def test_a_decorated_coroutine_and_generator_are_recorded_until_they_end(world: None) -> None:
    waited, begun = commtrace.record(), commtrace.record()

    @waited
    async def train() -> int:
        dist.barrier()
        await asyncio.sleep(0)
        dist.barrier()
        return 2

    @begun
    def batches() -> Iterator[int]:
        yield 0
        dist.barrier()
        yield 1

    assert asyncio.run(train()) == 2
    assert list(batches()) == [0, 1]
    assert (waited.total(), begun.total()) == (2, 1)
    assert not waited.is_on
    assert not begun.is_on


def test_an_asynchronous_generator_is_no_function_to_be_decorated() -> None:
    async def batches() -> AsyncIterator[int]:
        yield 0

    with pytest.raises(UsageError) as raised:
        commtrace.record()(batches)
    assert "inside it or around its loop" in str(raised.value)


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


def test_a_folder_that_cannot_be_written_to_is_reported_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recording = commtrace.record(tmp_path / "file" / "run.json")
    with pytest.raises(RecordingError, match="cannot start recording"), recording:
        pass
    assert RECORDER.buffers == ()


def record_on_every_rank(folder: str) -> int:
    with commtrace.record(Path(folder) / "run.json") as recording:
        for _ in range(3):
            dist.all_reduce(torch.ones(4))
            recording.step()
    dist.barrier()
    return recording.total()  # its own part, although rank 0 has removed the spools


def test_the_recordings_of_all_ranks_are_joined_in_one_file(tmp_path: Path) -> None:
    assert run_processes(record_on_every_rank, 3, str(tmp_path)) == [3, 3, 3]
    trace = read_trace(tmp_path / "run.json")
    assert list(trace.tables["comm"]["rank"]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    for seq in range(3):  # simultaneous calls coincide on the common time scale
        rows = [row for row in calls_of(trace) if row.seq == seq]
        assert max(row.issue_ns for row in rows) < min(row.complete_ns for row in rows)


def calls_of(trace: commtrace.Trace) -> list[Any]:
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


# Unplanned ends. Each program runs by itself: `sys.argv[1]` is the run file.

PROGRAM = """
import os, signal, sys, time, torch, torch.distributed as dist, commtrace
from torch.testing._internal.distributed.fake_pg import FakeStore
def begin(rank=0, size=2):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
"""


def start(program: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::FutureWarning", "-c", PROGRAM + program, str(path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def ended(program: str, path: Path) -> tuple[int, str]:
    """Exit code of a program, and its text on stderr."""
    process = start(program, path)
    try:
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, stderr


KILLED = """
def work(rank):
    begin(rank, 4)
    count, tell = 0, time.monotonic()
    with commtrace.record(sys.argv[1], detail=["collective", "op"][rank % 2]):
        while True:
            dist.all_reduce(torch.ones(4))
            count += 1
            if time.monotonic() > tell:
                os.write(1, f"{rank} {os.getpid()} {count} {time.process_time()}\\n".encode())
                tell += 0.05
for rank in range(3):
    if os.fork() == 0:
        work(rank)
for _ in range(3):
    os.wait()
"""


def test_processes_killed_under_load_leave_all_but_their_last_second(tmp_path: Path) -> None:
    """Three ranks are each killed at a random moment; the fourth never begins.

    The second is measured in the process's CPU time: without CPU time it cannot have written
    anything.
    """
    moments = [1 + random.random() * 2.5 for _ in range(3)]
    process = start(KILLED, tmp_path / "run.json")
    counts: dict[int, list[tuple[int, float]]] = {}
    pids: dict[int, int] = {}
    begun: dict[int, float] = {}
    killed: set[int] = set()
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            rank, pid, count, moment = line.split()
            lines = counts.setdefault(int(rank), [])
            lines.append((int(count), float(moment)))
            pids[int(rank)] = int(pid)
            begun.setdefault(int(rank), time.monotonic())
            for each, begin in begun.items():
                if each not in killed and time.monotonic() > begin + moments[each]:
                    killed.add(each)
                    os.kill(pids[each], signal.SIGKILL)
            if len(killed) == len(moments):
                break
        process.wait(timeout=30)
    finally:
        watchdog.cancel()
        for rank in pids.keys() - killed:
            os.kill(pids[rank], signal.SIGKILL)
        process.kill()
        process.communicate()
    trace = read_trace(tmp_path / "run.json.spools")
    assert trace.run["missing_ranks"] == [3]
    assert trace.run["torn_ranks"] == [0, 1, 2]
    for rank in killed:
        ids = [row.id for row in calls_of(trace) if row.rank == rank]
        assert ids == list(range(len(ids)))
        end = counts[rank][-1][1]
        expected = [count for count, told_at in counts[rank] if told_at < end - 1]
        assert len(ids) >= max(expected, default=0), (rank, moments)


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError(1)"])
def test_a_program_that_ends_inside_of_a_recording_is_recorded(end: str, tmp_path: Path) -> None:
    program = "begin()\nrecording = commtrace.record(sys.argv[1]).__enter__()\ndist.barrier()\n"
    code, stderr = ended(program + end, tmp_path / "run.json")
    assert code == {"": 0, "sys.exit(3)": 3}.get(end, 1)
    assert stderr.strip().endswith("KeyError: 1" if "KeyError" in end else "")
    trace = read_trace(tmp_path / "run.json")
    assert (trace.num_rows("comm"), trace.run["torn_ranks"]) == (1, [])


def test_a_killed_program_has_said_that_calls_were_dropped(tmp_path: Path) -> None:
    program = (
        "begin()\ncommtrace.record(sys.argv[1], max_calls=2).__enter__()\n"
        "for _ in range(5): dist.barrier()\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert ended(program, tmp_path / "run.comm")[0] == -signal.SIGKILL
    trace = read_trace(tmp_path / "run.comm")
    assert (trace.num_rows("comm"), trace.tables["ranks"]["num_dropped"][0]) == (2, 3)


def test_a_program_that_ends_at_once_leaves_what_was_written(tmp_path: Path) -> None:
    program = (
        "begin()\ncommtrace.record(sys.argv[1]).__enter__()\ndist.barrier()\n"
        "time.sleep(1)\nos._exit(4)"
    )
    assert ended(program, tmp_path / "run.json")[0] == 4
    with pytest.raises(NotATraceError, match=r"commtrace merge .*run\.json\.spools"):
        read_trace(tmp_path / "run.json")
    assert read_trace(tmp_path / "run.json.spools").num_rows("comm") == 1


FULL = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
begin()
with commtrace.record(sys.argv[1], detail="collective"):
    for number in range(20):
        if number == 5:
            size = os.path.getsize(sys.argv[1] + ".spools/rank-00000.spool")
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
        if number == 15:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        for size in range(100):
            dist.all_reduce(torch.ones(number * 100 + size))
        if number % 5 == 4:
            time.sleep(0.7)
print("done")
"""


def test_a_disk_that_is_full_for_a_while_costs_what_came_meanwhile(tmp_path: Path) -> None:
    code, stderr = ended(FULL, tmp_path / "run.json")
    assert code == 0
    assert "the recording lacks 1,000 calls, which could not be written" in stderr
    trace = read_trace(tmp_path / "run.json")
    ((num_events, dropped),) = [
        (row.num_events, row.num_dropped)
        for row in (RankRow(*each) for each in trace.rows("ranks"))
    ]
    assert num_events + dropped == 2000
    ids = set(trace.tables["comm"]["id"])
    assert ids >= {*range(500), *range(1500, 2000)}
    assert len(ids) == num_events < 2000
    for row in calls_of(trace):  # strings and all
        assert (row.kind, row.input_shapes) == ("all_reduce", f"[{row.id}]")
    assert trace.num_rows("groups") == 1


def test_a_run_file_that_cannot_be_written_is_no_error_of_the_program(
    world: None, tmp_path: Path
) -> None:
    recording = commtrace.record(tmp_path / "run.json").__enter__()
    dist.barrier()
    (tmp_path / "run.json").mkdir()
    with pytest.warns(RuntimeWarning, match="run.json"):
        recording.__exit__(None, None, None)
    assert read_trace(tmp_path / "run.json.spools").num_rows("comm") == 1


def test_a_users_exception_stays_what_it_is_where_the_file_cannot_be_written(
    world: None, tmp_path: Path
) -> None:
    def run() -> None:
        with commtrace.record(tmp_path / "run.json"):
            (tmp_path / "run.json").mkdir()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as error:
        run()
    assert error.value.__context__ is None


@pytest.mark.parametrize("path", ["", "."])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="the path has no file name"):
        commtrace.record(path)


def test_a_folder_in_place_of_the_file_is_reported_at_the_beginning(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="an existing folder"), commtrace.record(tmp_path):
        pass
    assert RECORDER.buffers == ()


def test_recordings_to_one_file_do_not_mix_and_the_last_to_end_stays(
    world: None, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    with commtrace.record(path):
        dist.barrier()
        with commtrace.record(path):
            dist.barrier()
        assert read_trace(path).num_rows("comm") == 1
        dist.barrier()
    assert read_trace(path).num_rows("comm") == 3
    assert list(tmp_path.iterdir()) == [path]


def record_twice(folder: str) -> None:
    for number in range(2):
        if dist.get_rank() == 0:
            time.sleep(0.3)  # the other rank has begun its second recording by then
        with commtrace.record(Path(folder) / "run.json") as recording:
            for _ in range(number + 1):
                dist.all_reduce(torch.ones(4))
        assert recording.total() == number + 1


def test_a_rank_that_records_again_before_the_files_are_joined_does_no_harm(
    tmp_path: Path,
) -> None:
    run_processes(record_twice, 2, str(tmp_path), timeout_s=25)
    trace = read_trace(tmp_path / "run.json")
    assert list(trace.tables["comm"]["rank"]) == [0, 0, 1, 1]


def record_before_there_is_a_rank(folder: str) -> None:
    rank = dist.get_rank()
    dist.destroy_process_group()
    variables = {name: os.environ.pop(name, None) for name in ("RANK", "WORLD_SIZE")}
    store = dist.FileStore(f"{folder}/store", 2)
    with commtrace.record(Path(folder) / "run.json"):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        dist.all_reduce(torch.ones(2))
    os.environ.update({name: value for name, value in variables.items() if value is not None})


def test_ranks_that_do_not_know_themselves_yet_write_each_a_spool(tmp_path: Path) -> None:
    run_processes(record_before_there_is_a_rank, 2, str(tmp_path), timeout_s=60)
    trace = read_trace(tmp_path / "run.json")
    assert list(trace.tables["comm"]["rank"]) == [0, 1]
    assert trace.run["missing_ranks"] == []
    assert set(trace.tables["ops"]["rank"]) == {0, 1} == set(trace.tables["steps"]["rank"])


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Some tensors to load."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index)


def test_workers_that_load_data_are_no_part_of_the_recording(world: None, tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=1)
    with commtrace.record(tmp_path / "run.json") as recording:
        for batch in loader:
            dist.all_reduce(batch)
    assert recording.total() == 4
    assert read_trace(tmp_path / "run.json").num_rows("comm") == 4


@pytest.mark.parametrize("detail", ["op", "collective"])
@pytest.mark.parametrize("values", [None, "op"])
def test_a_forked_child_is_no_part_of_the_recording(
    values: str | None, detail: str, world: None
) -> None:
    with commtrace.record(detail=detail, values=values) as recording:
        dist.barrier()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert current_mode() is None
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
    monkeypatch.setattr(session.Recording, "of_process", None)
    with session.record_process(
        SpoolFolder(tmp_path / "spools"), ProcessOptions("collective")
    ) as recording:
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


def test_nothing_is_kept_of_what_happens_while_paused(world: None) -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(8))
        with recording.paused():
            dist.barrier()
        dist.all_reduce(torch.ones(8))
    assert recording.counts() == {"all_reduce": 2}


def test_a_recording_proves_that_it_is_on_and_leaves_no_trace_of_that(world: None) -> None:
    recording = commtrace.record()
    with recording, commtrace.record() as another:
        assert recording.is_heard()
        dist.all_reduce(torch.ones(8))
        assert recording.is_heard()
    assert not recording.is_heard()
    for each in (recording, another):
        assert each.counts() == {"all_reduce": 1}
        assert [op.op for op in ops(each)] == ["aten.ones.default"]
        assert each.trace().run["process_group"] == "fake"


def test_calls_of_other_threads_are_kept_while_a_recording_checks_itself(
    world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = listening.call_without_peers

    def check_beside_a_thread() -> None:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(8),))
        thread.start()
        thread.join()
        check()

    monkeypatch.setattr(listening, "call_without_peers", check_beside_a_thread)
    with commtrace.record() as recording:
        assert recording.is_heard()
    assert recording.counts() == {"all_reduce": 1}


def test_a_recording_that_receives_no_calls_is_reported(world: None) -> None:
    with commtrace.record() as recording:
        num_events = RECORDER.buffers
        RECORDER.set_buffers(())
        assert not recording.is_heard()
        RECORDER.set_buffers(num_events)
        assert recording.is_heard()
        listening._interception.uninstall()
        assert not recording.is_heard()
