"""Requests of calls, which alike calls share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce

import commtrace
from commtrace.recorder import RECORDER
from commtrace.recorder.events.request import Request
from commtrace.recorder.interception.signatures import SIGNATURES
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls, unplaced_call

# torch deprecates two of the functions from 2.13 on.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield


def gather(num: int, dtype: torch.dtype = torch.float32) -> None:
    dist.all_gather_into_tensor(torch.empty(2 * num, dtype=dtype), torch.ones(num, dtype=dtype))


CALLS: tuple[Callable[[], Any], ...] = (
    lambda: dist.all_reduce(torch.ones(2)),
    lambda: dist.all_reduce(torch.ones(3)),
    lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64)),
    lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX),
    lambda: dist.all_reduce(torch.ones(2), async_op=True),
    lambda: dist.all_reduce(torch.ones(2), group=dist.new_group([0])),
    lambda: dist.broadcast(torch.ones(2), 0),
    lambda: dist.broadcast(torch.ones(2), 1),
    lambda: dist.reduce(torch.ones(2), 1),
    lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2)),
    lambda: gather(2),
    lambda: gather(3),
    lambda: gather(2, torch.bfloat16),
    lambda: dist.reduce_scatter_tensor(torch.empty(1), torch.ones(2)),
    lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2), [2, 0], [1, 1]),
    lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2), [0, 2], [1, 1]),
    lambda: dist.send(torch.ones(2), 1),
    lambda: dist.isend(torch.ones(2), 1),
    lambda: all_reduce(torch.ones(2), "sum", dist.group.WORLD),
    lambda: all_reduce(torch.ones(2), "max", dist.group.WORLD),
    lambda: all_gather_tensor(torch.ones(2), 0, dist.group.WORLD),
    lambda: all_gather_tensor(torch.ones(4), 0, dist.group.WORLD),
)
OF_ONE_CALL = frozenset({
    "id", "seq", "start_ns", "duration_ns", "complete_ns", "line", "group", "sent_id", "callers",
    "data_op_id", "data_call_id", "used_by_op_id", "used_by_call_id",
})  # fmt: skip


def columns(call: Any) -> dict[str, Any]:
    return {k: v for k, v in call._asdict().items() if k not in OF_ONE_CALL and k[-3:] != "_ns"}


def alone(call: Callable[[], Any]) -> dict[str, Any]:
    with commtrace.record() as recording:
        call()
    (only,) = calls(recording)
    return columns(only)


def test_a_call_among_others_has_the_values_that_it_has_alone() -> None:
    expected = [alone(each) for each in CALLS]
    assert len({str(each) for each in expected}) >= len(CALLS) - 2  # one differs in its group only
    with commtrace.record() as recording:
        for each in (*CALLS, *reversed(CALLS)):
            each()
    assert [columns(each) for each in calls(recording)] == [*expected, *reversed(expected)]


def test_alike_calls_share_a_request_and_are_one_call_site() -> None:
    with commtrace.record() as recording:
        for _ in range(3):
            dist.all_reduce(torch.ones(2))
        (group,) = RECORDER.groups
        assert len(group.requests) == 1
        recording._output.buffer.flush()
        assert len(recording._output.buffer._call_sites["comm"]._numbers) == 1
    assert [each.seq for each in calls(recording)] == [0, 1, 2]


def test_a_request_without_its_result_is_another_call_site() -> None:
    group = unplaced_call().request.group
    request = Request("c10d::allreduce_", SIGNATURES["_c10d_functional::all_reduce"], group)
    request.share()
    before = request.identity()
    request.read_result(torch.ones(2))
    assert request.identity() != before
