"""Modules that calls are attributed to, forward and backward."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.recorder import CURRENT, RECORDER
from commtrace.recorder.attribution import modules
from commtrace.torch_internals.modules import modules_of
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import Linear, ReduceForward, calls

FORWARD, BACKWARD = "forward", "backward"


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"wq": Linear(4, 4), "wo": Linear(4, 4)})
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention["wo"](self.attention["wq"](self.norm(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.out = Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def x() -> torch.Tensor:
    return torch.ones(3, 4, requires_grad=True)


def recorded(*functions: Callable[[], Any], detail: str = "collective") -> list[Any]:
    with commtrace.record(detail=detail) as recording:
        for function in functions:
            function()
    return calls(recording)


def where(events: list[Any]) -> list[tuple[str, str, int]]:
    return [(event.phase, event.module, event.module_call) for event in events]


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_calls_are_attributed_to_the_innermost_module_forward_and_backward(detail: str) -> None:
    model = Model()
    events = recorded(lambda: model(x()).sum().backward(), detail=detail)
    paths = [f"layers.{i}.attention.{name}" for i in (0, 1) for name in ("wq", "wo")] + ["out"]
    assert where(events) == [
        *((FORWARD, path, 0) for path in paths),
        *((BACKWARD, path, 0) for path in reversed(paths)),
    ]
    assert {event.module_class for event in events} == {"Linear"}


def test_code_of_the_outermost_module_itself_has_its_class_and_no_path() -> None:
    class Root(nn.Module):
        def forward(self) -> None:
            dist.barrier()

    (event,) = recorded(Root())
    assert (event.module, event.module_class, event.module_call) == ("", "Root", 0)


def test_code_outside_of_modules_has_neither() -> None:
    model = nn.Linear(4, 4)
    for event in recorded(dist.barrier, lambda: model(x()), dist.barrier):
        assert (event.phase, event.module, event.module_class, event.module_call) == (
            "other", "", "", -1,
        )  # fmt: skip


def test_each_call_of_a_module_has_its_number_and_its_own_backward() -> None:
    layer = Linear(4, 4)
    model = nn.Sequential(layer, layer, layer)
    events = recorded(lambda: model(x()).sum().backward())
    assert where(events) == [
        *((FORWARD, "0", number) for number in (0, 1, 2)),
        *((BACKWARD, "0", number) for number in (2, 1, 0)),
    ]


def test_gradient_accumulation_books_each_backward_to_its_own_forward() -> None:
    model = nn.Sequential(Linear(4, 4))
    losses = [torch.zeros(())] * 2

    def forward(step: int) -> None:
        losses[step] = model(x()).sum()

    events = recorded(
        lambda: forward(0), lambda: forward(1), losses[0].clone, lambda: losses[1].backward(),
        lambda: losses[0].backward(),
    )  # fmt: skip
    assert where(events) == [
        (FORWARD, "0", 0), (FORWARD, "0", 1), (BACKWARD, "0", 1), (BACKWARD, "0", 0),
    ]  # fmt: skip


def test_a_module_that_two_parents_share_has_the_path_by_which_it_was_called() -> None:
    class Parent(nn.Module):
        def __init__(self, child: nn.Module) -> None:
            super().__init__()
            self.child = child

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(x)

    shared = Linear(4, 4)
    model = nn.ModuleDict({"a": Parent(shared), "b": Parent(shared)})
    root = nn.Sequential()
    root.add_module("a", model["a"])
    root.add_module("b", model["b"])
    events = recorded(lambda: root(x()).sum().backward())
    assert where(events) == [
        (FORWARD, "a.child", 0), (FORWARD, "b.child", 0),
        (BACKWARD, "b.child", 0), (BACKWARD, "a.child", 0),
    ]  # fmt: skip


def test_tied_weights_do_not_confuse_modules() -> None:
    model = nn.Sequential(Linear(4, 4), Linear(4, 4))
    model[1].weight = model[0].weight
    assert [event.module for event in recorded(lambda: model(x()).sum().backward())] == [
        "0", "1", "1", "0",
    ]  # fmt: skip


def test_a_part_of_a_known_model_keeps_its_path_when_called_by_itself() -> None:
    model = Model()
    events = recorded(lambda: model(x()), lambda: model.layers[1](x()))
    assert [event.module for event in events[-2:]] == [
        "layers.1.attention.wq", "layers.1.attention.wo",
    ]  # fmt: skip
    assert [event.module_call for event in events[-2:]] == [1, 1]


def test_two_models_of_one_class_are_distinguished() -> None:
    first, second, third = (nn.Sequential(Linear(4, 4)) for _ in range(3))
    events = recorded(lambda: first(x()), lambda: second(x()), lambda: third(x()))
    assert [event.module for event in events] == ["0", "Sequential.0", "Sequential#2.0"]


def test_a_module_that_its_caller_does_not_own_is_named_by_its_class() -> None:
    other = Linear(4, 4)

    class Borrower(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return other(x)

    model = nn.Sequential(Borrower())
    assert [event.module for event in recorded(lambda: model(x()))] == ["0.Linear"]


@pytest.mark.filterwarnings("ignore:c10d..allreduce_. an autograd kernel was not registered")
def test_a_second_derivative_is_attributed_to_the_module_of_the_first() -> None:
    model = nn.Sequential(Linear(4, 4), nn.Tanh(), Linear(4, 1))

    def run() -> None:
        leaf = x()
        (grad,) = torch.autograd.grad(model(leaf).sum(), leaf, create_graph=True)
        grad.square().sum().backward()

    events = recorded(run)
    assert where(events)[:4] == [
        (FORWARD, "0", 0), (FORWARD, "2", 0), (BACKWARD, "2", 0), (BACKWARD, "0", 0),
    ]  # fmt: skip
    assert {event.phase for event in events[4:]} == {BACKWARD}
    assert {event.module for event in events[4:]} <= {"0", "2"}


def test_a_module_may_be_called_with_keywords_only() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(4, 4)

        def forward(self, *, given: torch.Tensor) -> torch.Tensor:
            return self.linear(input=given)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, *, given: torch.Tensor) -> torch.Tensor:
            return self.inner(given=given)

    assert where(recorded(lambda: Outer()(given=x()).sum().backward())) == [
        (FORWARD, "inner.linear", 0), (BACKWARD, "inner.linear", 0),
    ]  # fmt: skip


def test_hooks_of_a_module_are_attributed_to_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_pre_hook(lambda *_: dist.barrier())
    model[0].register_forward_hook(lambda *_: dist.barrier())
    model[1].register_full_backward_pre_hook(lambda *_: dist.barrier())
    model[1].register_full_backward_hook(lambda *_: dist.barrier())
    assert where(recorded(lambda: model(x()).sum().backward())) == [
        (FORWARD, "0", 0), (FORWARD, "0", 0), (BACKWARD, "1", 0), (BACKWARD, "1", 0),
    ]  # fmt: skip


def test_a_functional_call_is_a_call_of_its_module() -> None:
    model = nn.Sequential(Linear(4, 4))
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    events = recorded(lambda: torch.func.functional_call(model, weights, (x(),)).sum().backward())
    assert where(events) == [(FORWARD, "0", 0), (BACKWARD, "0", 0)]


def test_transforms_of_functions_are_recorded_and_not_disturbed() -> None:
    class Communicating(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            dist.barrier()
            return super().forward(input)

    model = nn.Sequential(Communicating(4, 4))
    plain = torch.func.grad(lambda each: model(each).sum())(torch.ones(4))
    found: list[torch.Tensor] = []
    events = recorded(
        lambda: found.append(torch.func.grad(lambda each: model(each).sum())(torch.ones(4))),
        lambda: found.append(torch.func.vmap(model)(torch.ones(3, 4))),
        detail="op",
    )
    assert found[0].equal(plain)
    assert where(events) == [(FORWARD, "0", 0), (FORWARD, "0", 1)]


def test_a_module_that_raises_is_left_and_nothing_else_changes() -> None:
    class Failing(nn.Module):
        def forward(self, _: torch.Tensor) -> None:
            raise ValueError("mine")

    module_call = nn.Module.__call__
    with commtrace.record() as recording:
        with pytest.raises(ValueError, match=r"^mine$"):
            nn.Sequential(Failing())(x())
        dist.barrier()
    (event,) = calls(recording)
    assert (event.module, event.module_class) == ("", "")
    assert nn.Module.__call__ is module_call


def test_an_exception_that_leaves_the_recording_leaves_no_trace_of_it() -> None:
    module_call, recording = nn.Module.__call__, commtrace.record()
    with pytest.raises(KeyError), recording:
        raise KeyError
    assert nn.Module.__call__ is module_call
    assert RECORDER.buffers == ()


def test_modules_have_no_hooks_while_recording() -> None:
    model = Model()
    with commtrace.record():
        model(x()).sum().backward()
        for module in model.modules():
            hooks = [name for name in vars(module) if "hooks" in name and vars(module)[name]]
            assert hooks == []


def test_what_another_tool_has_put_in_the_place_of_a_modules_call_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, seen = nn.Module.__call__, []

    def other(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return original(self, *args, **kwargs)

    model = Model()
    monkeypatch.setattr(nn.Module, "__call__", other)
    model(x())
    alone = seen.copy()
    seen.clear()
    with commtrace.record(detail="collective") as recording:
        model(x())
    assert seen == alone != []
    assert all(event.phase == "forward" for event in calls(recording))
    assert nn.Module.__call__ is other


def test_modules_are_not_kept_alive() -> None:
    with commtrace.record():
        model = nn.Sequential(Linear(4, 4))
        model(x()).sum().backward()
        reference = weakref.ref(model[0])
        del model
        gc.collect()
        assert reference() is None


def test_modules_made_anew_for_each_call_share_a_path_and_count_on() -> None:
    model = nn.Sequential(nn.Linear(4, 4))

    class Loss(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ReduceForward.apply(x)  # type: ignore[return-value]

    class Parent(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Loss()(x)

    parent = Parent()
    events = recorded(
        *[lambda: model(x()), lambda: Loss()(x()), lambda: parent(x()), gc.collect] * 20
    )
    assert [(event.module, event.module_call) for event in events] == [
        each for number in range(20) for each in (("Loss", number), ("Parent.Loss", number))
    ]


def test_a_module_that_is_added_later_is_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4))

    def add() -> None:
        model.append(Linear(4, 4))

    events = recorded(lambda: model(x()), add, lambda: model(x()), add, lambda: model(x()))
    assert [event.module for event in events] == ["1", "1", "2"]


def test_many_strange_modules_do_not_make_the_model_be_searched_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    searches = []

    def counting(root: nn.Module, **options: Any) -> Any:
        searches.append(root)
        return modules_of(root, **options)

    monkeypatch.setattr("commtrace.recorder.module_place.modules_of", counting)
    recorded(lambda: model(x()), *[lambda: nn.Tanh()(x())] * 1000)
    assert 0 < sum(each is model for each in searches) < 20


def test_marks_do_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_MAX_MARKS", 100)
    model = nn.Sequential(Linear(4, 4))
    with commtrace.record(detail="collective") as recording:
        for _ in range(100):
            model(x()).sum().backward()
        assert len(CURRENT.modules.mark_seqs) <= 100
    assert [event.module for event in calls(recording)[-2:]] == ["0", "0"]


def test_the_marks_of_a_thread_do_not_outlive_the_recording() -> None:
    recorded(lambda: Model()(x()))
    recorded(dist.barrier)
    assert CURRENT.modules.mark_seqs == []


def test_a_backward_on_another_thread_finds_the_modules_of_the_forward() -> None:
    model = nn.Sequential(Linear(4, 4))
    loss = []
    with commtrace.record(detail="collective") as recording:
        loss.append(model(x()).sum())
        thread = threading.Thread(target=loss[0].backward)
        thread.start()
        thread.join()
    assert where(calls(recording)) == [(FORWARD, "0", 0), (BACKWARD, "0", 0)]


def on_threads_of_their_own(functions: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(functions)) as threads:
        all_there = threading.Barrier(len(functions))
        return [each.result() for each in [threads.submit(_met, all_there, f) for f in functions]]


def _met(all_there: threading.Barrier, function: Callable[[], Any]) -> Any:
    all_there.wait()
    return function()


def test_forwards_on_threads_that_follow_each_other_are_distinguished() -> None:
    model = nn.Sequential(Linear(4, 4))
    with commtrace.record(detail="collective") as recording:
        for _ in range(2):
            (loss,) = on_threads_of_their_own([lambda: model(x()).sum()])
            loss.backward()
    assert where(calls(recording)) == [
        (FORWARD, "0", 0), (BACKWARD, "0", 0), (FORWARD, "0", 1), (BACKWARD, "0", 1),
    ]  # fmt: skip


def test_which_of_several_threads_made_a_node_is_not_guessed() -> None:
    models = [nn.Sequential(Linear(4, 4)) for _ in range(2)]
    with commtrace.record(detail="collective") as recording:
        for loss in on_threads_of_their_own([lambda m=m: m(x()).sum() for m in models]):
            loss.backward()
    assert [(each.phase, each.module_class) for each in calls(recording)[2:]] == [
        (BACKWARD, ""), (BACKWARD, ""),
    ]  # fmt: skip


def test_a_hook_of_a_parameter_is_attributed_to_the_module_that_holds_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    events = recorded(lambda: model(x()).sum().backward())
    assert {event.phase for event in events} == {BACKWARD}
    assert sorted(event.module for event in events) == ["0", "0", "1", "1"]


def test_recording_that_begins_between_forward_and_backward_does_not_guess() -> None:
    model = nn.Sequential(Linear(4, 4))
    loss = model(x()).sum()
    (event,) = recorded(loss.backward)
    assert (event.phase, event.module, event.module_class) == (BACKWARD, "", "")


def test_a_compiled_model_stays_compiled_and_is_compiled_once() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    compiled(x())
    with commtrace.record(detail="collective"):
        compiled(x())
    with commtrace.record(detail="op"):
        compiled(x())
    compiled(x())
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_a_model_that_is_compiled_while_recording_is_compiled_without_breaks() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Tanh())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with commtrace.record(detail="collective"):
        result = compiled(x())
    assert result.equal(compiled(x()))
    torch._dynamo.reset()
