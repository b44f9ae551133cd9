"""Waits of DistributedDataParallel's reducer are recorded, although they happen in C++."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.recorder.interception.reducers import FUNCTIONS_THAT_WAIT
from commtrace.recorder.recorder import RECORDER
from dtensor_core.testing import run_processes
from tests.commtrace.recorder.recorded import calls

LATE_S = 0.3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])


def blocked_by_the_late(options: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """For each pass in which rank 1 is late: buckets, blocked ns, backward's ns, unknown waits."""
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.003, **options)
    rows = []
    for _ in range(3):
        with commtrace.record(detail="collective") as recording:
            loss = wrapped(torch.ones(2, 32)).sum()
            dist.barrier()
            time.sleep(LATE_S * dist.get_rank())
            begin = time.perf_counter_ns()
            loss.backward()
            lasted = time.perf_counter_ns() - begin
        blocked = [each.blocked_ns for each in calls(recording) if each.phase == "backward"]
        rows.append((len(blocked), sum(blocked), lasted, blocked.count(-1)))
    return rows


@pytest.mark.parametrize("option", ["", "find_unused_parameters", "static_graph"])
def test_the_reducer_waits_for_the_late_rank(option: str) -> None:
    options = {option: True} if option else {}
    punctual, late = run_processes(blocked_by_the_late, 2, options)
    for num_buckets, blocked, lasted, unknown in (*punctual, *late):
        assert num_buckets >= 1
        assert unknown == 0
        assert 0 <= blocked <= lasted
    # Of three passes, since other programs on the machine may delay either rank in one of them.
    assert median(blocked for _, blocked, _, _ in punctual) > 0.8 * LATE_S * 1e9
    assert median(blocked for _, blocked, _, _ in late) < 0.5 * LATE_S * 1e9
    assert punctual[-1][0] > 1, "there were no buckets to tell apart"


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")


def failing() -> tuple[list[bool], list[int]]:
    """A pass that raises after its first bucket, then a pass that succeeds."""
    first, second = (nn.Linear(4, 4) for _ in range(2))
    two = [DistributedDataParallel(each) for each in (first, second)]
    with commtrace.record(detail="collective") as recording:
        x = two[0](torch.ones(2, 4, requires_grad=True))
        with pytest.raises(ValueError, match="on purpose"):
            two[1](Fails.apply(x)).sum().backward()
        pending = [
            each.expects_blocked_time
            for p in RECORDER.pending.reducers._passes.values()
            for each in p.calls
        ]
        two[0](torch.ones(2, 4)).sum().backward()
    return pending, [each.blocked_ns for each in calls(recording) if each.phase == "backward"]


def test_a_backward_pass_that_raises_leaves_unknown_what_nobody_waited_for() -> None:
    for pending, blocked in run_processes(failing, 2):
        assert pending == [True]
        assert blocked[0] == -1
        assert blocked[1] >= 0


def with_a_hook(hook: Any) -> list[tuple[Any, ...]]:
    wrapped = DistributedDataParallel(model())
    wrapped.register_comm_hook(None, hook)
    with commtrace.record(detail="collective") as recording:
        wrapped(torch.ones(2, 32)).sum().backward()
    return [
        (each.module_class, each.carries, len(each.parameters.split(",")), each.blocked_ns >= 0)
        for each in calls(recording)
        if each.phase == "backward"
    ]


@pytest.mark.parametrize("hook", [allreduce_hook, fp16_compress_hook])
def test_what_torchs_hooks_send_is_the_reducers(hook: Any) -> None:
    bucket = ("DistributedDataParallel", "gradients", 8, True)
    assert run_processes(with_a_hook, 2, hook) == [[bucket], [bucket]]


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def blocked_by_a_late_root() -> tuple[list[tuple[str, int]], list[Any]]:
    """Blocked times of calls that DDP itself makes, with rank 0 late to some of them."""
    functions = [vars(owner)[name] for owner, name in FUNCTIONS_THAT_WAIT]
    wrapped: Any = None
    with commtrace.record(detail="collective") as recording:
        wrapped = DistributedDataParallel(WithBuffers())
        wrapped(torch.ones(2, 8)).sum().backward()
        time.sleep(LATE_S * (1 - dist.get_rank()))
        wrapped(torch.ones(2, 8)).sum().backward()
    same = [
        vars(owner)[name] is old
        for (owner, name), old in zip(FUNCTIONS_THAT_WAIT, functions, strict=True)
    ]
    return [(each.kind, each.blocked_ns) for each in calls(recording)], same


def test_what_ddp_waits_for_in_one_function_is_known() -> None:
    late, punctual = run_processes(blocked_by_a_late_root, 2)
    for rows, same in (late, punctual):
        assert {kind for kind, _ in rows} == {"all_gather", "broadcast", "all_reduce"}
        assert min(blocked for _, blocked in rows) >= 0
        assert all(same), "the functions were not put back"
    assert max(blocked for kind, blocked in punctual[0] if kind == "broadcast") > 0.8 * LATE_S * 1e9
    assert sum(blocked for _, blocked in late[0]) < 0.5 * LATE_S * 1e9
