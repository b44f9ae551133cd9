"""Operators have details in some steps, the same on every rank; in others they are unknown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

import commtrace
from commtrace.analyze import load
from commtrace.launching.launcher import run_script
from commtrace.recorder.events import data_times, operator_details
from commtrace.recorder.events.operator_details import has_details
from commtrace.session import Recording, flusher
from commtrace.tracefile import read_trace
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls, ops

pytestmark = pytest.mark.usefixtures("preloaded")

MM = "aten.mm.default"
UNKNOWN = {("", "", -1, -1)}


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Another test of this process may have compiled a function.
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)
    # A call of a fake group is over at once, and is written before its result is used.
    monkeypatch.setattr(flusher, "FLUSH_INTERVAL_S", 600)
    with fake_world(2):
        yield


@pytest.fixture
def every_4th(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_details, "_EVERY", 4)


def details(recording: Recording, op: str = MM) -> list[tuple[int, tuple[Any, ...]]]:
    """Step and details of each of the operators with a name."""
    return [
        (each.step, (each.needs, each.shapes, each.flops, each.bytes))
        for each in ops(recording)
        if each.op == op
    ]


def detailed_steps(recording: Recording, op: str = MM) -> list[int]:
    """Steps in which these operators have details; in no step, only some of them do."""
    found = details(recording, op)
    detailed = [step for step, each in found if {each} != UNKNOWN]
    assert {step for step, each in found if {each} == UNKNOWN}.isdisjoint(detailed)
    return sorted({*detailed})


def product(size: int = 4) -> torch.Tensor:
    return torch.ones(size, size) @ torch.ones(size, size)


class Training:
    """A program with several optimizers that marks no steps."""

    def __init__(self, num_optimizers: int = 1) -> None:
        weights = [Parameter(torch.ones(4, 4)) for _ in range(num_optimizers)]
        self.parts: list[tuple[Parameter, Optimizer]] = [(each, SGD([each])) for each in weights]

    def step(self) -> None:
        for weight, optimizer in self.parts:
            (torch.ones(4, 4) @ weight).sum().backward()
            optimizer.step()


def test_the_first_two_steps_and_each_hundredth_have_details() -> None:
    with commtrace.record() as recording:
        for _ in range(202):
            product()
            recording.step()
    assert detailed_steps(recording) == [0, 1, 100, 200]
    assert {each for _, each in details(recording)} - UNKNOWN == {
        ("1,2", "[4,4];[4,4]", 2 * 4 * 4 * 4, 3 * 4 * 4 * 4)
    }
    assert [step for step in range(202) if has_details(step)] == [0, 1, 100, 200]


@pytest.mark.usefixtures("every_4th")
@pytest.mark.parametrize("num_optimizers", [1, 2, 3])
def test_steps_that_are_found_have_details_as_a_whole(num_optimizers: int) -> None:
    training = Training(num_optimizers)
    with commtrace.record() as recording:
        for _ in range(10):
            training.step()
    assert recording.trace().run["steps_from"] == "optimizer"
    assert detailed_steps(recording) == [0, 1, 4, 8]


@pytest.mark.usefixtures("every_4th")
def test_each_entry_of_a_recording_is_a_step() -> None:
    recording = commtrace.record()
    for _ in range(7):
        with recording:
            product()
            dist.barrier()
    assert detailed_steps(recording) == [0, 1, 4]


@pytest.mark.usefixtures("every_4th")
def test_steps_that_are_recorded_are_counted() -> None:
    with commtrace.record(every=2) as recording:
        for _ in range(18):
            product()
            recording.step()
    assert sorted({step for step, _ in details(recording)}) == [*range(0, 18, 2)]
    assert detailed_steps(recording) == [0, 2, 8, 16]


@pytest.mark.usefixtures("every_4th")
def test_a_recording_that_begins_later_has_first_steps_too() -> None:
    with commtrace.record() as outer:
        for _ in range(3):
            product()
            outer.step()
        with commtrace.record() as inner:
            for _ in range(3):
                product()
                inner.step()
    assert detailed_steps(inner) == [0, 1]


@pytest.mark.usefixtures("every_4th")
def test_shapes_that_change_are_recorded_now_and_then() -> None:
    with commtrace.record() as recording:
        for step in range(9):
            product(step + 1)
            recording.step()
    found = {step: (shapes, flops) for step, (_, shapes, flops, _) in details(recording)}
    for step in range(9):
        size = step + 1
        known = f"[{size},{size}];[{size},{size}]", 2 * size**3
        assert found[step] == (known if step in (0, 1, 4, 8) else ("", -1))


def test_a_program_without_steps_has_details_of_its_first_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_times, "MOST_DETAILED", 10)
    with commtrace.record() as recording:
        for _ in range(10):
            product()
            torch.ones(3).view(3, 1)  # views are not counted
        known = [each.bytes >= 0 for each in ops(recording) if "view" not in each.op]
        assert known == [True] * 10 + [False] * 30
        recording.step()
        product()
    assert details(recording)[-1] == (1, ("1,2", "[4,4];[4,4]", 128, 192))


def flow() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    scaled = tensor.mul(2)
    dist.all_reduce(scaled)
    scaled.exp()


def test_times_and_operators_of_calls_are_known_in_every_step() -> None:
    with commtrace.record() as recording:
        for _ in range(4):
            flow()
            recording.step()
    names = {each.id: each.op.split(".")[1] for each in ops(recording)}
    by_step: dict[int, list[Any]] = {}
    for each in calls(recording):
        by_step.setdefault(each.step, []).append(each)
    for first, second in by_step.values():
        assert (names[first.data_op_id], names[second.data_op_id]) == ("ones", "mul")
        assert (names[first.used_by_op_id], names[second.used_by_op_id]) == ("mul", "exp")
        assert min(first.data_ready_ns, second.data_ready_ns, second.result_used_ns) > 0
    # Which call the data comes from through operators is a detail of these.
    assert [second.data_call_id for _, second in by_step.values()] == [0, 2, -1, -1]


def test_the_origin_of_data_is_unknown_where_operators_before_had_no_details() -> None:
    def program(recording: Recording) -> None:
        for _ in range(3):
            recording.step()
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor.mul(2))

    with commtrace.record() as recording:
        program(recording)
    assert [each.data_call_id for each in calls(recording)] == [-1, 0, -1]


BODY = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters())
for step in range(102):
    for _ in range(1 + dist.get_rank()):
        layer(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(layer.weight.grad)
    optimizer.step()
"""


def test_ranks_agree_on_the_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BODY)
    result = run_script(script, nproc=2, spool_folder=tmp_path / "spools")
    assert result.ok
    found = load(read_trace(result.spool_folder)).ops
    known = found[found["bytes"] >= 0]
    # Those before the first call of a module are in no step.
    for _, of_rank in known.groupby("rank"):
        assert sorted(set(of_rank["step"])) == [-1, 0, 1, 100]
