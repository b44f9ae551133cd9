"""A buffer writes completed calls, shows those in flight, and respects its limit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.schema import FORMAT_VERSION
from commtrace.tracefile import parse_spool
from dtensor_core.testing import fake_world, run_processes
from tests.commtrace.recorder.recorded import calls, steps


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(2):
        yield


def test_calls_beyond_the_bound_are_counted(world: None) -> None:
    with commtrace.record(max_calls=3) as recording:
        for _ in range(5):
            dist.barrier()
    assert [event.id for event in calls(recording)] == [0, 1, 2]
    ((num_events, num_dropped),) = zip(
        *(recording.trace().tables["ranks"][name] for name in ("num_events", "num_dropped")),
        strict=True,
    )
    assert (num_events, num_dropped) == (3, 2)


def test_what_is_written_is_not_kept(world: None) -> None:
    with commtrace.record(detail="op") as recording:
        for _ in range(10):
            dist.all_reduce(torch.ones(2))
        buffer = recording._output.buffer
        assert len([*buffer._calls]) + len(buffer._spans) > 0
        recording._output.flush()
        assert ([*buffer._calls], buffer._spans) == ([], [])


def test_nothing_new_is_not_written(world: None) -> None:
    with commtrace.record() as recording:
        dist.barrier()
        recording._output.flush()
        before = recording._output.buffer.contents()
        recording._output.flush()
        assert recording._output.buffer.contents() == before


def outstanding() -> tuple[list[Any], list[Any]]:
    """Rows of rank 0's spool while it waits for rank 1, and afterwards."""
    tensor = torch.ones(2)
    dist.barrier()
    with commtrace.record() as recording:
        if dist.get_rank() == 0:
            work = dist.all_reduce(tensor, async_op=True)
            recording._output.flush()
            meanwhile = calls(recording)
        dist.barrier(group=_GROUPS["other"])
        if dist.get_rank() == 1:
            work = dist.all_reduce(tensor, async_op=True)
            meanwhile = []
        work.wait()  # type: ignore[union-attr]
    return meanwhile, calls(recording)


_GROUPS: dict[str, Any] = {}


def outstanding_in_two_groups() -> tuple[list[Any], list[Any]]:
    _GROUPS["other"] = dist.new_group()
    return outstanding()


def test_a_call_in_progress_is_in_the_spool_without_an_end_and_then_with_one() -> None:
    meanwhile, after = run_processes(outstanding_in_two_groups, 2)[0]
    assert [(event.kind, event.complete_ns, event.blocked_ns) for event in meanwhile] == [
        ("all_reduce", -1, -1)
    ]
    assert [event.kind for event in after] == ["all_reduce", "barrier"]
    assert after[0].id == meanwhile[0].id
    assert after[0].complete_ns > after[0].issue_ns == meanwhile[0].issue_ns


def test_steps_hold_what_happened_in_them(world: None) -> None:
    with commtrace.record() as recording:
        for number in range(3):
            for _ in range(number):
                dist.barrier()
            recording.step()
        dist.barrier()
    assert [event.step for event in calls(recording)] == [1, 2, 2, 3]
    rows = steps(recording)
    assert [row.step for row in rows] == [0, 1, 2, 3]
    assert all(before.end_ns == after.start_ns for before, after in pairwise(rows))
    for event in calls(recording):
        assert rows[event.step].start_ns <= event.issue_ns <= rows[event.step].end_ns


def test_operators_have_the_step_they_began_in(world: None) -> None:
    with commtrace.record() as recording:
        for _ in range(3):
            torch.ones(2)
            recording.step()
    assert list(recording.trace().tables["ops"]["step"]) == [0, 1, 2]


def test_a_last_step_in_which_nothing_happened_is_none(world: None) -> None:
    with commtrace.record() as recording:
        dist.barrier()
        recording.step()
    assert [row.step for row in steps(recording)] == [0]


def test_a_recording_without_steps_is_one_step(world: None) -> None:
    with commtrace.record() as recording:
        dist.barrier()
    assert [row.step for row in steps(recording)] == [0]
    assert [event.step for event in calls(recording)] == [0]


def test_a_million_events_would_fit() -> None:
    """A call of a regular training takes less than 40 bytes in the compressed spool."""
    with fake_world(8), commtrace.record(detail="collective") as recording:
        for _ in range(200):
            for size in (16, 64, 256):
                dist.all_reduce(torch.ones(size))
            dist.all_gather([torch.empty(16)] * 8, torch.ones(16))
            recording.step()
        recording._output.flush()
        (written,) = recording._output.buffer.contents()
    spool = parse_spool(written)
    num_calls = len(spool.tables["comm"]["id"])
    assert num_calls == 800
    assert len(written) / num_calls < 40
    assert io.BytesIO(written).readline() == b"commtrace-spool %d\n" % FORMAT_VERSION
