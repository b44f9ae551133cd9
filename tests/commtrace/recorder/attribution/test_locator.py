"""Phase of a call, and the user's line that issues it."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.optim.optimizer as optimizer
from torch import nn
from torch.utils.checkpoint import checkpoint

import commtrace
from commtrace.recorder.attribution.stack_frames import callers_of
from commtrace.recorder.caller_chain import MOST_FRAMES
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import (
    Linear,
    ReduceForward,
    call,
    calls,
    on_a_thread_of_the_engine,
    ops,
)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield


def x() -> torch.Tensor:
    return torch.ones(3, 4, requires_grad=True)


def recorded(function: Callable[[], Any], detail: str = "collective") -> list[Any]:
    with commtrace.record(detail=detail) as recording:
        function()
    return calls(recording)


def phases(events: list[Any]) -> list[tuple[str, str]]:
    return [(event.phase, event.module) for event in events]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(Linear(4, 4), Linear(4, 4))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("detail", ["collective", "op"])
def test_recomputation_is_a_phase_of_its_own(reentrant: bool, detail: str) -> None:
    model = nn.Sequential(Checkpointed(reentrant))
    events = recorded(lambda: model(x()).sum().backward(), detail)
    first, second = "0.inner.0", "0.inner.1"
    assert phases(events[:2]) == [("forward", first), ("forward", second)]
    again = [event.module for event in events if event.phase == "recompute"]
    backward = [event.module for event in events if event.phase == "backward"]
    # The part of the last layer that no gradient needs is not recomputed.
    assert again in ([first, second], [first])
    assert backward == [second, first]
    assert len(events) == 2 + len(again) + 2


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_of_checkpoints_are_recomputed(reentrant: bool) -> None:
    inner = nn.Sequential(Linear(4, 4), Checkpointed(reentrant))
    outer = Checkpointed(reentrant)
    outer.inner = inner
    events = recorded(lambda: nn.Sequential(outer)(x()).sum().backward())
    one, two, three = "0.inner.0", "0.inner.1.inner.0", "0.inner.1.inner.1"
    found = phases(events)
    assert found[:3] == [("forward", one), ("forward", two), ("forward", three)]
    assert [each for each in found if each[0] == "backward"] == [
        ("backward", three), ("backward", two), ("backward", one),
    ]  # fmt: skip
    again = {module for phase, module in found if phase == "recompute"}
    assert {one, two} <= again <= {one, two, three}
    assert {phase for phase, _ in found[3:]} == {"recompute", "backward"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_function_without_modules_is_recomputed_too(reentrant: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        return ReduceForward.apply(x.sin()).sin()

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(function, x, use_reentrant=reentrant)

    model = nn.Sequential(Model())
    events = recorded(lambda: model(x()).sum().backward())
    assert phases(events) == [("forward", "0"), ("recompute", "0")]


def test_a_step_of_an_optimizer_is_a_phase() -> None:
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            dist.barrier()
            return super().step(closure)

    layer = nn.Linear(4, 4)
    sgd = Optimizer(layer.parameters(), lr=0.1)

    def run() -> None:
        sgd.step()
        dist.barrier()

    assert phases(recorded(run)) == [("optimizer", ""), ("other", "")]


def test_what_a_hook_sends_before_a_step_is_of_the_step() -> None:
    sgd = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    hook = optimizer.register_optimizer_step_pre_hook(lambda *_: dist.barrier() and None)
    try:
        assert phases(recorded(sgd.step)) == [("optimizer", "")]
    finally:
        hook.remove()


def test_forward_and_backward_inside_of_an_optimizer_step_are_themselves() -> None:
    model = nn.Sequential(Linear(4, 4))
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Any:
        lbfgs.zero_grad()
        loss = model(x()).sum()
        loss.backward()
        dist.barrier()
        return loss

    events = recorded(lambda: lbfgs.step(closure))
    assert phases(events[:3]) == [("forward", "0"), ("backward", "0"), ("optimizer", "")]


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_a_step_that_a_hook_of_a_gradient_makes_is_a_step(detail: str) -> None:
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            dist.barrier()
            return super().step(closure)

    model = nn.Sequential(Linear(4, 4, bias=False))
    sgd = Optimizer(model.parameters(), lr=0.1, foreach=False)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: sgd.step())
    with commtrace.record(detail=detail) as recording:
        for _ in range(2):
            model(x()).sum().backward()
    assert set(phases(calls(recording))) == {
        ("forward", "0"),
        ("backward", "0"),
        ("optimizer", "0"),
    }
    if detail == "op":
        updates = [op for op in ops(recording) if op.op == "aten.add_.Tensor"]
        assert "optimizer" in {op.phase for op in updates}
        assert {op.phase for op in ops(recording) if op.op == "aten.mm.default"} >= {"backward"}


def test_a_step_that_raised_does_not_colour_what_follows() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("mine")

    failing = Failing(nn.Linear(4, 4).parameters(), lr=0.1)

    def run() -> None:
        with pytest.raises(ValueError, match="mine"):
            failing.step()
        dist.barrier()
        dist.barrier()

    assert phases(recorded(run)) == [("other", ""), ("other", "")]


def test_optimizers_have_no_hooks_afterwards() -> None:
    before = len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)
    recorded(dist.barrier)
    after = len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)
    assert after == before


def test_clipping_gradients_is_neither_forward_nor_backward() -> None:
    model = nn.Sequential(Linear(4, 4))

    def run() -> None:
        model(x()).sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        dist.all_reduce(nn.utils.get_total_norm(gradients))

    assert phases(recorded(run))[-1] == ("other", "")


def test_a_backward_that_a_module_runs_is_backward() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            (grad,) = torch.autograd.grad(self.inner(x).sum(), x)
            dist.barrier()
            return grad

    assert phases(recorded(lambda: Penalty()(x()))) == [
        ("forward", "inner"), ("backward", "inner"), ("forward", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("detail", ["collective", "op"])
def test_a_backward_that_a_module_runs_recomputes_what_is_inside_of_it(
    reentrant: bool, detail: str
) -> None:
    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Checkpointed(reentrant)

        def forward(self, x: torch.Tensor) -> Any:
            result = self.inner(x)
            result.sum().backward()
            dist.barrier()
            return result

    events = recorded(lambda: Solver()(x()), detail)
    one, two = "inner.inner.0", "inner.inner.1"
    found = phases(events)
    assert found[:3] == [("forward", one), ("forward", two), ("recompute", one)]
    assert found[3:-3] in ([], [("recompute", two)])
    assert found[-3:] == [("backward", two), ("backward", one), ("forward", "")]


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_the_source_line_is_the_nearest_one_of_the_users(detail: str) -> None:
    def inner() -> None:
        dist.all_reduce(torch.ones(2))  # here

    def run() -> None:
        inner()

    (event,) = recorded(run, detail)
    assert event.source_file == __file__
    assert event.source_line == line_of(inner, "# here")
    assert event.source_function == "inner"
    assert event.callers.splitlines()[-1] == f"{__file__}:{line_of(run, 'inner()')} run"


def test_frames_of_libraries_are_not_among_the_callers() -> None:
    class Model(nn.Module):
        def forward(self) -> None:
            dist.all_reduce(torch.ones(2))

    model = Model()

    def run() -> None:
        model()  # here

    (event,) = recorded(run)
    assert event.callers.splitlines()[-1] == f"{__file__}:{line_of(run, '# here')} run"
    assert not any("site-packages" in each for each in event.callers.splitlines())


def library(text: str) -> Any:
    """The function `run` of a package that is installed."""
    file = "/venv/lib/python3.11/site-packages/trainer_of_others/loop.py"
    own: dict[str, Any] = {"__name__": "trainer_of_others.loop", "dist": dist, "torch": torch}
    exec(compile(dedent(text), file, "exec"), own)
    return own["run"]


def test_the_nearest_frame_of_a_library_is_kept_beside_the_users_line() -> None:
    train = library("""
        def run():
            reduce()

        def reduce():
            dist.all_reduce(torch.ones(2))
        """)

    def run() -> None:
        train()  # here
        dist.all_reduce(torch.ones(2))

    through, direct = recorded(run)
    assert through.source_line == line_of(run, "# here")
    assert through.via == "trainer_of_others/loop.py:6 reduce"
    assert direct.via == ""


@pytest.mark.parametrize("is_hooked", [False, True])
def test_a_backward_pass_that_a_library_calls_names_it(is_hooked: bool) -> None:
    backward = library("""
        def run(loss):
            loss.backward()
        """)
    hook = library("""
        def run(gradient):
            dist.all_reduce(gradient)
        """)
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(hook if is_hooked else lambda gradient: dist.all_reduce(gradient))

    def run() -> None:
        backward((weight * 2).sum())  # here

    (event,) = recorded(run)
    if is_hooked:  # the nearest one
        assert event.via == "trainer_of_others/loop.py:3 run"
        assert event.source_line == line_of(run, "# here")
    else:
        assert event.source_function == "<lambda>"
        assert event.via == ""


def test_equal_chains_of_callers_are_one_object() -> None:
    def chain() -> Any:
        return callers_of(sys._getframe(0))

    first, second = (chain() for _ in range(2))
    assert first is second
    assert chain() is not first


def test_deep_recursion_keeps_the_innermost_callers() -> None:
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            dist.all_reduce(torch.ones(2))

    (event,) = recorded(lambda: down(100))
    callers = event.callers.splitlines()
    assert len(callers) == MOST_FRAMES
    assert {each.rpartition(" ")[2] for each in callers} == {"down"}


def test_the_callers_in_the_backward_pass_reach_beyond_the_engine() -> None:
    layer = Linear(4, 4)

    def run() -> None:
        layer(x()).sum().backward()  # here

    event = recorded(run)[-1]
    assert f"{__file__}:{line_of(run, '# here')} run" in event.callers.splitlines()


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda: dist.all_gather_into_tensor(torch.ones(4), torch.ones(2)),
        lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4)),
    ],
)
def test_what_torch_wraps_with_others_code_has_the_users_line(function: Any) -> None:
    (event,) = recorded(function)
    assert (event.source_file, event.source_function) == (__file__, "<lambda>")


def test_the_source_line_in_a_module_is_in_its_forward() -> None:
    class Model(nn.Module):
        def forward(self) -> None:
            with torch.no_grad():
                dist.all_reduce(torch.ones(2))

    (event,) = recorded(Model())
    assert (event.source_function, event.source_file) == ("forward", __file__)


def test_the_source_line_of_the_engines_calls_is_the_one_that_called_backward() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.register_post_accumulate_grad_hook(_reduce_without_a_line_of_ours())

    def run() -> None:
        layer(x()).sum().backward()  # here

    (event,) = recorded(run)
    assert event.source_line == line_of(run, "# here")


def _reduce_without_a_line_of_ours() -> Callable[[torch.Tensor], None]:
    namespace: dict[str, Any] = {"__name__": "torch.pretended", "dist": dist}
    exec("def hook(p): dist.all_reduce(p.grad)", namespace)
    return namespace["hook"]


def test_a_line_of_the_users_in_the_backward_pass_is_reported() -> None:
    layer = Linear(4, 4)
    events = recorded(lambda: layer(x()).sum().backward())
    assert (events[-1].phase, events[-1].source_function) == ("backward", "backward")
    assert events[-1].source_file.endswith("recorded.py")


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_a_backward_pass_on_a_thread_of_the_engine_is_placed_as_on_the_callers(detail: str) -> None:
    def run() -> None:
        with recording.region("here"):
            on_a_thread_of_the_engine(loss.backward)
        with recording.region("there"):
            on_a_thread_of_the_engine(again.backward)
        dist.barrier()

    model = nn.Sequential(Linear(4, 4), Linear(4, 4))
    recording = commtrace.record(detail=detail)
    with recording:
        loss, again = model(x()).sum(), model(x()).sum()
        run()
    *_, first, second, third, fourth, last = calls(recording)
    assert {event.thread for event in (first, fourth)} != {last.thread}
    assert [(each.phase, each.module, each.module_call) for each in (first, second)] == [
        ("backward", "1", 0), ("backward", "0", 0),
    ]  # fmt: skip
    assert [(each.phase, each.module, each.module_call) for each in (third, fourth)] == [
        ("backward", "1", 1), ("backward", "0", 1),
    ]  # fmt: skip
    assert [each.region for each in (first, second, third, fourth)] == ["here"] * 2 + ["there"] * 2
    spans = [each for each in ops(recording) if each.phase == "backward" and each.module]
    assert {each.region for each in spans} == ({"here", "there"} if detail == "op" else set())


def test_a_checkpoint_on_a_thread_of_the_engine_does_not_confuse_modules() -> None:
    model = nn.Sequential(Checkpointed(True), Linear(4, 4), Checkpointed(False))
    with commtrace.record(detail="collective", stacks=True) as recording:
        loss = model(x()).sum()
        on_a_thread_of_the_engine(loss.backward)  # here
    found = [event for event in calls(recording) if event.phase != "forward"]
    assert phases(found) == [
        ("recompute", "2.inner.0"),  # recomputation stops after the last tensor needed
        ("backward", "2.inner.1"), ("backward", "2.inner.0"), ("backward", "1"),
        ("recompute", "0.inner.0"), ("recompute", "0.inner.1"),
        ("backward", "0.inner.1"), ("backward", "0.inner.0"),
    ]  # fmt: skip
    name = "test_a_checkpoint_on_a_thread_of_the_engine_does_not_confuse_modules"
    assert all(name in event.stack for event in found)


def test_a_thread_that_runs_torchs_code_only_has_no_line() -> None:
    with commtrace.record() as recording:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),))
        thread.start()
        thread.join()
    event = call(recording)
    assert (event.source_file, event.source_line, event.source_function) == ("", -1, "")


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_what_a_backward_pass_holds_goes_with_it(detail: str) -> None:
    def reduce(gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)

    model, graphs = nn.Linear(4, 4), []

    def step() -> None:
        out = model(x())
        out.register_hook(reduce)
        loss = out.sum()
        graphs.append(weakref.ref(loss))
        loss.backward()

    with commtrace.record(detail=detail) as recording:
        step()
        gc.collect()
        gc.disable()  # which would also free what is in a cycle, but later
        try:
            step()
        finally:
            gc.enable()
        assert [each() for each in graphs] == [None, None]
    assert [call.phase for call in calls(recording)] == ["backward"] * 2
