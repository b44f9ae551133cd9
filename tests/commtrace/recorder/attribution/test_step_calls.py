"""Steps of programs that mark none: the expected number, detected at no cost."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

import commtrace
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls, steps

NUM = 5


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with fake_world(2):
        yield


class Model(nn.Module):
    """A linear layer whose forward pass communicates."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(1))
        return self.linear(x)


def backward(model: nn.Module, scale: float = 1.0) -> None:
    (model(torch.ones(2, 4)).pow(2).mean() * scale).backward()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def one_optimizer(first: Model, second: Model) -> None:
    optimizer = sgd(first)
    for _ in range(NUM):
        backward(first)
        optimizer.step()


def accumulating(first: Model, second: Model) -> None:
    optimizer = sgd(first)
    for _ in range(NUM):
        for _ in range(3):
            backward(first)
        optimizer.step()


def two_in_turn(first: Model, second: Model) -> None:
    optimizers = sgd(first), sgd(second)
    for _ in range(NUM):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            backward(model)
            optimizer.step()


def the_second_one_seldom(first: Model, second: Model) -> None:
    optimizers = sgd(first), sgd(second)
    for number in range(NUM):
        backward(first)
        optimizers[0].step()
        if number % 2:
            backward(second)
            optimizers[1].step()


def one_per_parameter(first: Model, second: Model) -> None:
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in first.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]

    for each in first.parameters():
        each.register_post_accumulate_grad_hook(step)
    for _ in range(NUM):
        backward(first)


def skipping(first: Model, second: Model) -> None:
    optimizer, scaler = sgd(first), GradScaler("cpu", init_scale=2.0)
    for number in range(NUM):
        loss = first(torch.ones(2, 4)).mean() * (float("inf") if number in (1, 2) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def with_closures(first: Model, second: Model) -> None:
    optimizer = torch.optim.LBFGS(first.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = first(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(NUM):
        optimizer.step(closure)  # type: ignore[arg-type]


def compiled(first: Model, second: Model) -> None:
    optimizer = torch.optim.Adam(first.parameters(), foreach=True)
    step = torch.compile(optimizer.step, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the compiler itself
        for _ in range(NUM):
            backward(first)
            step()


def made_anew(first: Model, second: Model) -> None:
    for _ in range(NUM):
        backward(first)
        sgd(first).step()


def with_one_that_raises(first: Model, second: Model) -> None:
    class Raising(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise KeyError

    optimizer, raising = sgd(first), Raising(first.parameters(), lr=0.1)
    for _ in range(NUM):
        backward(first)
        with pytest.raises(KeyError):
            raising.step()
        optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        one_optimizer,
        accumulating,
        two_in_turn,
        the_second_one_seldom,
        one_per_parameter,
        skipping,
        with_closures,
        compiled,
        made_anew,
        with_one_that_raises,
    ],
)
def test_a_program_has_as_many_steps_as_its_loop_has_turns(
    program: Callable[[Model, Model], None],
) -> None:
    models = Model(), Model()
    dist.barrier()
    with commtrace.record(detail="collective") as recording:
        dist.barrier()  # belongs to set-up
        program(*models)
        dist.barrier()  # belongs to what follows
    assert recording.trace().run["steps_from"] == "optimizer"
    found = steps(recording)
    assert [each.step for each in found] == list(range(NUM))
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(found))
    made = [event.step for event in calls(recording)]
    assert (made[0], made[-1]) == (-1, -1)
    assert made[1:-1] == sorted(made[1:-1])
    assert set(made[1:-1]) == set(range(NUM))


def test_operators_have_the_step_that_was_found_too() -> None:
    with commtrace.record() as recording:
        one_optimizer(Model(), Model())
    made = list(recording.trace().tables["ops"]["step"])
    assert {made.count(number) for number in range(1, NUM)} == {made.count(1)}
    assert made.count(1) > 5


def test_a_marked_step_wins() -> None:
    model = Model()
    optimizer = sgd(model)
    with commtrace.record(detail="collective") as recording:
        for _ in range(2):
            for _ in range(3):
                backward(model)
                optimizer.step()
            recording.step()
    assert recording.trace().run["steps_from"] == "marked"
    assert [event.step for event in calls(recording)] == [0] * 3 + [1] * 3


def test_a_step_that_is_marked_late_wins_over_those_found_before() -> None:
    model = Model()
    optimizer = sgd(model)
    with commtrace.record(detail="collective") as recording:
        for _ in range(3):
            backward(model)
            optimizer.step()
        recording.step()
    assert recording.trace().run["steps_from"] == "marked"
    assert [event.step for event in calls(recording)] == [0, 0, 0]


def test_a_recording_that_is_entered_for_each_step_marks_them() -> None:
    model = Model()
    optimizer = sgd(model)
    recording = commtrace.record(detail="collective")
    for _ in range(3):
        with recording:
            backward(model)
            optimizer.step()
            backward(model)
    assert recording.trace().run["steps_from"] == "marked"
    assert [event.step for event in calls(recording)] == [0, 0, 1, 1, 2, 2]


def test_without_any_sign_of_a_step_the_recording_is_one() -> None:
    with commtrace.record(detail="collective") as recording:
        for _ in range(3):
            backward(Model())
    assert recording.trace().run["steps_from"] == "recording"
    assert [event.step for event in calls(recording)] == [0, 0, 0]


def test_steps_are_those_of_a_profiler_if_no_optimizer_steps() -> None:
    model = Model()
    with commtrace.record(detail="collective") as recording, torch.profiler.profile() as profiler:
        for _ in range(3):
            model(torch.ones(2, 4))
            profiler.step()
    assert recording.trace().run["steps_from"] == "profiler"
    assert [event.step for event in calls(recording)] == [0, 1, 2]


def test_steps_are_those_of_a_scheduler_if_nothing_else_steps() -> None:
    model = Model()
    optimizer = sgd(model)
    with commtrace.record(detail="collective") as recording, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it should come after the optimizer
        parts: list[LRScheduler] = [LinearLR(optimizer), CosineAnnealingLR(optimizer, 10)]
        scheduler = SequentialLR(optimizer, parts, [2])
        for _ in range(4):
            model(torch.ones(2, 4))
            scheduler.step()
    assert recording.trace().run["steps_from"] == "scheduler"
    assert [event.step for event in calls(recording)] == [0, 1, 2, 3]


def test_an_optimizer_comes_before_a_scheduler_of_epochs() -> None:
    model = Model()
    optimizer = sgd(model)
    scheduler = LinearLR(optimizer)
    with commtrace.record(detail="collective") as recording:
        for _ in range(2):
            for _ in range(3):
                backward(model)
                optimizer.step()
            scheduler.step()
    assert recording.trace().run["steps_from"] == "optimizer"
    assert [event.step for event in calls(recording)] == list(range(6))


def test_nothing_is_left_behind() -> None:
    def methods() -> list[Any]:
        owners = (GradScaler, torch.profiler.profile, LRScheduler, SequentialLR, dist.P2POp)
        return [vars(owner).get(name) for owner in owners for name in ("step", "__init__")]

    before = methods()
    with commtrace.record(detail="collective"):
        assert methods() != before
    assert methods() == before
