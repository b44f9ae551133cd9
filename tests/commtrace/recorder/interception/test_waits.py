"""The first wait for an asynchronous call is in its row; later waits are rows of `later_waits`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.event import LaterWaitRow
from commtrace.recorder.interception import pending
from commtrace.session import Recording
from commtrace.tracefile.spool_reading import read_spool
from dtensor_core.testing import run_processes
from tests.commtrace.recorder.recorded import call, calls

LATE_S = 0.5


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def later_waits(recording: Recording) -> list[Any]:
    return [LaterWaitRow(*row) for row in recording.trace().rows("later_waits")]


def reduced(**options: Any) -> Any:
    work = dist.all_reduce(torch.ones(4), async_op=True, **options)
    assert work is not None
    return work


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("detail", ["collective", "op"])
def test_the_wait_for_a_handle_is_in_the_row_of_its_call(detail: Any) -> None:
    with commtrace.record(detail=detail) as recording:
        work = reduced()
        before = time.monotonic_ns()
        work.wait()
        lasted = time.monotonic_ns() - before
    row = call(recording)
    assert row.issue_ns + row.call_ns <= row.wait_begin_ns
    assert 0 <= row.first_wait_ns == row.blocked_ns <= lasted
    assert row.wait_thread == threading.get_native_id()
    assert later_waits(recording) == []


@pytest.mark.usefixtures("_alone")
def test_a_call_that_is_not_waited_for_or_is_synchronous_has_no_wait() -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(4))
        dist.barrier()
        unawaited = reduced()
    del unawaited
    rows = calls(recording)
    assert {(row.wait_begin_ns, row.first_wait_ns, row.wait_thread) for row in rows} == {
        (-1, -1, -1)
    }
    assert (len(rows), later_waits(recording)) == (3, [])


@pytest.mark.usefixtures("_alone")
def test_each_further_wait_for_a_handle_is_a_row() -> None:
    with commtrace.record(detail="collective") as recording:
        dist.all_reduce(torch.ones(4))
        work = reduced()
        for _ in range(3):
            work.wait()
    row, waits = calls(recording)[1], later_waits(recording)
    assert [(each.rank, each.id, each.call_id) for each in waits] == [(0, 0, 1), (0, 1, 1)]
    assert row.wait_begin_ns + row.first_wait_ns <= waits[0].at_ns
    assert waits[0].at_ns + waits[0].duration_ns <= waits[1].at_ns
    assert {each.thread for each in waits} == {row.wait_thread} == {threading.get_native_id()}
    assert row.blocked_ns == row.first_wait_ns


@pytest.mark.usefixtures("_alone")
def test_waits_for_calls_before_the_recording_and_for_old_handles_are_not_kept() -> None:
    early = reduced()
    early.wait()
    with commtrace.record(detail="collective") as first:
        work = reduced()
        work.wait()
    with commtrace.record(detail="collective") as second:
        for each in (early, work):
            each.wait()
    assert later_waits(first) == later_waits(second) == []


@pytest.mark.usefixtures("_alone")
def test_only_the_latest_handles_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "_MAX_WAITED", 2)
    with commtrace.record(detail="collective") as recording:
        works = [reduced() for _ in range(3)]
        for _ in range(2):
            for work in works:
                work.wait()
    assert [each.call_id for each in later_waits(recording)] == [1, 2]


@pytest.mark.usefixtures("_alone")
def test_the_wait_for_the_result_of_a_functional_collective() -> None:
    group = dist.group.WORLD
    assert group is not None
    with commtrace.record(detail="collective") as recording:
        result = all_reduce(torch.ones(4), "sum", group)
        wait_tensor(result)
        wait_tensor(result)  # torch has nothing left to wait for
    row = call(recording)
    assert row.issue_ns + row.call_ns <= row.wait_begin_ns
    assert (row.first_wait_ns, row.wait_thread) == (row.blocked_ns, threading.get_native_id())
    assert later_waits(recording) == []


def two_threads() -> tuple[Any, list[Any], int] | None:
    """The waits of two threads of rank 0 at the same time, while rank 1 is late."""
    dist.barrier()
    with commtrace.record(detail="collective") as recording:
        if dist.get_rank():
            time.sleep(LATE_S)
            reduced().wait()
            return None
        work = reduced()
        other = threading.Thread(target=work.wait)
        other.start()
        time.sleep(LATE_S / 4)
        work.wait()
        other.join()
    return call(recording), later_waits(recording), threading.get_native_id()


def test_the_wait_of_another_thread_at_the_same_time_is_a_row() -> None:
    found, _ = run_processes(two_threads, 2)
    assert found is not None
    row, (wait,), main = found
    assert row.wait_thread != main == wait.thread
    assert row.wait_begin_ns < wait.at_ns < row.wait_begin_ns + row.first_wait_ns
    assert row.first_wait_ns > wait.duration_ns > 0
    assert wait.call_id == row.id


def a_timeout() -> tuple[Any, list[Any]] | None:
    """A wait of rank 0 that times out, and a second, while rank 1 is late."""
    dist.barrier()
    with commtrace.record(detail="collective") as recording:
        if dist.get_rank():
            time.sleep(LATE_S)
            reduced().wait()
            return None
        work = reduced()
        with pytest.raises(RuntimeError):
            work.wait(timeout=timedelta(seconds=LATE_S / 10))
        work.wait()
    return call(recording), later_waits(recording)


def test_a_wait_that_times_out_is_the_first() -> None:
    found, _ = run_processes(a_timeout, 2)
    assert found is not None
    row, (wait,) = found
    assert LATE_S / 10 <= row.first_wait_ns / 1e9 < LATE_S / 2
    assert row.wait_begin_ns + row.first_wait_ns <= wait.at_ns
    assert wait.duration_ns > LATE_S / 4 * 1e9
    assert row.blocked_ns == wait.duration_ns


def trained() -> tuple[list[Any], int, int]:
    """The buckets of a backward pass; the other calls whose waits are in C++; the thread."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
    with commtrace.record(detail="collective") as recording:
        model = DistributedDataParallel(layers, bucket_cap_mb=0.003)
        for _ in range(2):
            model(torch.ones(2, 32)).sum().backward()
    rows = calls(recording)
    buckets = [row for row in rows if row.phase == "backward"]
    others = [
        row for row in rows if row.phase != "backward" and row.is_async and row.first_wait_ns >= 0
    ]
    assert later_waits(recording) == []
    return buckets, len(others), threading.get_native_id()


def test_the_reducer_s_waits_in_cpp_follow_each_other() -> None:
    for buckets, num_others, thread in run_processes(trained, 2):
        assert len(buckets) > 2
        assert num_others > 0
        assert {row.wait_thread for row in buckets} == {thread}
        for row in buckets:
            assert row.first_wait_ns == row.blocked_ns >= 0
            assert row.wait_begin_ns >= row.issue_ns + row.call_ns
        second = buckets[-2:]
        assert second[0].wait_begin_ns + second[0].first_wait_ns <= second[1].wait_begin_ns


def waiting(path: Path) -> Any:
    """Columns of the spool of rank 0 while it waits for rank 1, which is late."""
    dist.barrier()
    with commtrace.record(path, detail="collective") as recording:
        if dist.get_rank():
            time.sleep(LATE_S)
            reduced().wait()
            return None
        work = reduced()
        waiter = threading.Thread(target=work.wait)
        waiter.start()
        time.sleep(LATE_S / 2)
        recording._output.flush()
        (spool,) = path.rglob("rank-00000.spool")
        comm = read_spool(spool).tables["comm"]
        waiter.join()
    return {name: list(comm[name]) for name in ("wait_begin_ns", "first_wait_ns", "issue_ns")}


def test_a_wait_in_progress_has_a_beginning_and_no_end(tmp_path: Path) -> None:
    found, _ = run_processes(waiting, 2, tmp_path / "run.comm")
    assert found["first_wait_ns"] == [-1]
    assert found["wait_begin_ns"][0] >= found["issue_ns"][0] > 0
