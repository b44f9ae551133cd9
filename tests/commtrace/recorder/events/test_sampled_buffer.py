"""A recording with `every` has the steps 0, N, 2N as a whole, and nothing of the others."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.analyze import load
from commtrace.analyze.notices import notices_of
from commtrace.analyze.traffic.by_step import by_step
from commtrace.errors import UsageError
from commtrace.recorder import CURRENT, RECORDER
from commtrace.session import Recording
from commtrace.torch_internals.dispatcher import TorchDispatchMode, current_mode
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls, ops, steps


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with fake_world(2):
        yield


def numbers(recording: Recording) -> list[int]:
    return [row.step for row in steps(recording)]


def seqs_by_step(recording: Recording) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for call in calls(recording):
        found.setdefault(call.step, []).append(call.seq)
    return found


def test_marked_steps_are_recorded_every_nth_time() -> None:
    with commtrace.record(every=3) as recording:
        for _ in range(8):
            dist.all_reduce(torch.ones(2))
            torch.ones(2)
            dist.barrier()
            recording.step()
    assert numbers(recording) == [0, 3, 6]
    assert seqs_by_step(recording) == {0: [0, 1], 3: [6, 7], 6: [12, 13]}
    # Each step has three: of the two tensors, and the barrier's.
    assert Counter(each.step for each in ops(recording)) == {0: 3, 3: 3, 6: 3}
    assert recording.trace().run["every"] == 3


class Optimizers:
    """A program with several optimizers that marks no steps, and communicates once for each."""

    def __init__(self, num: int) -> None:
        parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(num)]
        self.optimizers = [torch.optim.SGD([each], lr=0.1) for each in parameters]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            dist.all_reduce(torch.ones(2))
            optimizer.step()


@pytest.mark.parametrize("num", [1, 2, 3])
def test_found_steps_are_recorded_every_nth_time(num: int) -> None:
    program = Optimizers(num)
    with commtrace.record(every=4) as recording:
        dist.barrier()
        for _ in range(10):
            program.step()
    assert recording.trace().run["steps_from"] == "optimizer"
    assert numbers(recording) == [0, 1, 4, 8]
    of = seqs_by_step(recording)
    assert [of[step] for step in (0, 1, 4, 8)] == [
        # The barrier belongs to the first step, since no module was called after it.
        [0, *range(1, 1 + num)],
        *([*range(1 + num * step, 1 + num * (step + 1))] for step in (1, 4, 8)),
    ]
    assert set(of) == {0, 1, 4, 8}


def test_what_precedes_the_first_step_is_kept() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with commtrace.record(every=5) as recording:
        for _ in range(3):
            dist.barrier()
        for _ in range(7):
            layer(torch.ones(1, 2)).sum().backward()
            dist.all_reduce(torch.ones(2))
            optimizer.step()
    assert {step: len(of) for step, of in seqs_by_step(recording).items()} == {
        -1: 3, 0: 1, 1: 1, 5: 1,
    }  # fmt: skip


def test_a_first_mark_after_skipped_steps_replaces_them() -> None:
    program = Optimizers(1)
    with commtrace.record(every=2) as recording:
        for _ in range(5):
            for _ in range(6):
                program.step()
            recording.step()
    assert recording.trace().run["steps_from"] == "marked"
    assert numbers(recording) == [2, 4]
    assert {step: len(of) for step, of in seqs_by_step(recording).items()} == {2: 6, 4: 6}


def test_each_entry_is_a_step() -> None:
    recording = commtrace.record(every=2)
    for _ in range(5):
        with recording:
            dist.barrier()
    assert seqs_by_step(recording) == {0: [0], 2: [2], 4: [4]}
    assert numbers(recording) == [0, 2, 4]


def test_an_empty_last_step_does_not_count() -> None:
    recording = commtrace.record(every=3)
    for _ in range(4):
        with recording:
            for _ in range(2):
                dist.barrier()
                recording.step()
    assert seqs_by_step(recording) == {0: [0], 3: [3], 6: [6]}


def test_a_pause_within_a_recorded_step_ends_in_it() -> None:
    with commtrace.record(every=2) as recording:
        for _ in range(4):
            dist.barrier()
            with recording.paused():
                dist.all_reduce(torch.ones(2))
            dist.barrier()
            recording.step()
    assert seqs_by_step(recording) == {0: [0, 2], 2: [6, 8]}


def test_a_step_that_ends_in_a_pause_is_counted() -> None:
    with commtrace.record(every=2) as recording:
        for _ in range(4):
            dist.barrier()
            with recording.paused():
                recording.step()
                dist.all_reduce(torch.ones(2))
    assert seqs_by_step(recording) == {0: [0], 2: [4]}


def test_an_outer_recording_of_all_steps_loses_nothing() -> None:
    with commtrace.record() as outer, commtrace.record(every=2) as recording:
        for _ in range(4):
            torch.ones(2)
            dist.barrier()
            recording.step()
    assert [len(each) for each in (calls(outer), ops(outer))] == [4, 8]
    assert [len(each) for each in (calls(recording), ops(recording))] == [2, 4]
    assert numbers(outer) == [0, 1, 2, 3]
    assert numbers(recording) == [0, 2]


def test_all_is_left_as_it_was() -> None:
    before = current_mode()
    with commtrace.record(every=2) as recording:
        assert current_mode() is not before
        recording.step()
        assert current_mode() is before
        assert recording.is_heard()
    assert current_mode() is before
    assert not CURRENT.state.operators.has_mode
    assert RECORDER.buffers == ()


class Mode(TorchDispatchMode):
    """A mode of another tool."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_mode_of_another_tool_is_not_left_in_its_place() -> None:
    before = current_mode()
    with commtrace.record(every=2) as recording, Mode() as other:
        recording.step()
        assert current_mode() is other
        torch.ones(2)
        recording.step()
        torch.ones(2)
        assert current_mode() is other
    assert current_mode() is before
    assert [each.step for each in ops(recording)] == [2]


def test_operators_that_cannot_be_recorded_are_reported() -> None:
    before = current_mode()
    recording = commtrace.record(every=2)

    def program() -> None:
        with recording:
            recording.step()
            with Mode():
                recording.step()
                dist.barrier()

    with pytest.warns(RuntimeWarning, match="the operators of a step were not recorded"):
        program()
    assert current_mode() is before
    assert [each.step for each in calls(recording)] == [2]


def num_of_our_calls(run: Callable[[], None]) -> int:
    """Return how often functions of commtrace are called."""
    num, package = 0, str(Path(commtrace.__file__).parent)

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal num
        num += event == "call" and frame.f_code.co_filename.startswith(package)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return num


def work() -> None:
    for _ in range(20):
        torch.ones(2).add_(1).mul_(2)
    dist.all_reduce(torch.ones(2))


def test_a_skipped_step_costs_what_communication_alone_costs() -> None:
    costs = {}
    for name, options in {
        "collective": {"detail": "collective"},
        "op": {"detail": "op"},
        "every": {"detail": "op", "every": 10},
    }.items():
        with commtrace.record(**options) as recording:
            recording._flusher.stop()
            work()  # what is learned once
            recording.step()
            work()
            # The least of several, since the garbage collector calls functions of ours, too.
            costs[name] = min(num_of_our_calls(work) for _ in range(3))
    assert costs["op"] > 3 * costs["collective"]
    assert costs["every"] <= costs["collective"]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_a_number_of_steps_is_one_from_1(every: Any) -> None:
    with pytest.raises(UsageError, match="cannot record every Nth step") as raised:
        commtrace.record(every=every)
    assert raised.value.found == f"every={every!r}"
    assert raised.value.attempt


def test_all_steps_are_recorded_with_every_1() -> None:
    with commtrace.record(every=1) as recording:
        for _ in range(3):
            dist.barrier()
            recording.step()
    assert numbers(recording) == [0, 1, 2]
    assert "every" not in recording.trace().run


def test_readers_are_told(tmp_path: Path) -> None:
    with commtrace.record(tmp_path / "run.json", every=3) as recording:
        for _ in range(8):
            dist.barrier()
            recording.step()
    frames = load(tmp_path / "run.json")
    assert any(
        "Only every 3rd step was recorded" in notice.text and "3 recorded steps" in notice.text
        for notice in notices_of(frames)
    )
    assert by_step(frames)["step"].tolist() == [0, 3, 6]
