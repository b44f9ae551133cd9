"""Operators that follow each other are located once; locating each operator gives the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import commtrace
from commtrace.recorder.interception.operators import OperatorMode
from dtensor_core import Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import ops


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield


class Reentrant(torch.autograd.Function):
    """Runs a backward pass of its own within the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = torch.ones(4, requires_grad=True)
            inner.sin().sum().backward()
        return grads[0] * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).sin() * 2).cos()


def with_regions(recording: commtrace.Recording) -> None:
    model = Block()
    with recording.region("outer"):
        y = model(torch.ones(2, 4))
        with recording.region("inner"):
            y = y * 2
        y.sum().backward()
    torch.ones(2)


def with_an_optimizer_between_others(recording: commtrace.Recording) -> None:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        torch.ones(2)
        optimizer.step()
        torch.ones(2)


def with_an_optimizer_in_the_backward_pass(recording: commtrace.Recording) -> None:
    model = Block()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1, foreach=False)
        parameter.register_post_accumulate_grad_hook(
            lambda _, optimizer=optimizer: optimizer.step()
        )
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


def with_recomputation(recording: commtrace.Recording) -> None:
    model, x = Block(), torch.ones(2, 4, requires_grad=True)
    for use_reentrant in (False, True):
        y: Any = checkpoint(model, x, use_reentrant=use_reentrant)
        y.sin().sum().backward()


def with_a_backward_pass_in_another(recording: commtrace.Recording) -> None:
    model = Block()
    for _ in range(2):
        y = Reentrant.apply(model(torch.ones(2, 4)))
        model(y).sum().backward()  # type: ignore[union-attr]


def with_a_module_called_in_a_backward_hook(recording: commtrace.Recording) -> None:
    model, other = Block(), nn.Linear(4, 4)
    x = torch.ones(2, 4, requires_grad=True)
    y = model(x)
    y.register_hook(lambda grad: other(grad).detach())
    y.sum().backward()
    other(x).sum().backward()


def with_distributed_tensors(recording: commtrace.Recording) -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.ones(4, 4, requires_grad=True), mesh, [Shard(0)])
    (x.sin() @ x.T).softmax(-1).sum().backward()


PROGRAMS = (
    with_regions, with_an_optimizer_between_others, with_an_optimizer_in_the_backward_pass,
    with_recomputation, with_a_backward_pass_in_another, with_a_module_called_in_a_backward_hook,
    with_distributed_tensors,
)  # fmt: skip


def rows_of(program: Callable[[commtrace.Recording], None]) -> list[tuple[Any, ...]]:
    torch.manual_seed(0)
    with commtrace.record() as recording:
        program(recording)
    return [
        (op.id, op.parent, op.op, op.level, op.phase, op.region, op.module, op.module_call)
        for op in ops(recording)
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_operators_are_where_each_one_is_located_alone(
    program: Callable[[commtrace.Recording], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows_of(program)
    num_located = 0
    find = OperatorMode._find_where

    def located_alone(self: OperatorMode, operators: Any, *args: Any) -> Any:
        nonlocal num_located
        num_located += 1
        where = find(self, operators, *args)
        operators.moved()
        return where

    monkeypatch.setattr(OperatorMode, "_find_where", located_alone)
    assert rows_of(program) == found
    assert num_located >= sum(row[3] == "dtensor" or row[1] < 0 for row in found) > 3


def test_operators_in_a_row_at_one_place_are_located_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_located = 0
    find = OperatorMode._find_where

    def counted(self: OperatorMode, *args: Any) -> Any:
        nonlocal num_located
        num_located += 1
        return find(self, *args)

    monkeypatch.setattr(OperatorMode, "_find_where", counted)
    with commtrace.record() as recording:
        for _ in range(10):
            torch.ones(2).add_(1).mul_(2)
    assert len(ops(recording)) == 30
    assert num_located == 1
