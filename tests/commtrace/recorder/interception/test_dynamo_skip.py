"""torch.compile behaves the same while recording: graphs, breaks, and compiled parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

import commtrace
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield
    dynamo.reset()


class Reduced(nn.Module):
    """Communicates in both passes, and compiles without graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(self.inner(x), "sum", [0, 1])


class Broken(nn.Module):
    """Communicates at a graph break and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), Reduced()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        dist.barrier()
        return self.second(y)


class PartlyCompiled(nn.Module):
    """Cannot be compiled itself; its children can, and outnumber the versions kept per function."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Reduced() for _ in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            try:
                dynamo.graph_break()
                x = part(x)
            finally:
                pass
        return x


MODES: dict[str, Callable[[], Any]] = {
    "collective": lambda: commtrace.record(detail="collective"),
    "op": lambda: commtrace.record(detail="op"),
    "mode": commtrace.CommDebugMode,
}


def x(rows: int = 3) -> torch.Tensor:
    return torch.ones(rows, 4, requires_grad=True)


def compiled(make: Callable[[], nn.Module], mode: str | None) -> dict[str, Any]:
    """Counters of dynamo after compiling a model, running it, and recompiling for other sizes."""
    dynamo.reset()
    dynamo.utils.counters.clear()
    model = torch.compile(make(), backend="aot_eager")
    with MODES[mode]() if mode else nullcontext():
        for rows in (3, 3, 5, 7):
            model(x(rows)).sum().backward()
    counters = dynamo.utils.counters
    names = ["stats", "graph_break", "recompiles", "aot_autograd"]
    names += ["frames"] if mode in (None, "collective") else []  # a mode adds one frame
    return {name: dict(counters[name]) for name in names}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Reduced, Broken, PartlyCompiled])
def test_what_is_compiled_is_the_same_while_recording(make: Any) -> None:
    plain = compiled(make, None)
    assert plain["stats"]["unique_graphs"] >= 2
    for mode in MODES:
        found = compiled(make, mode)
        assert found == {name: plain[name] for name in found}, mode


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["collective", "op"])
def test_what_was_compiled_before_is_not_compiled_again(mode: str) -> None:
    dynamo.utils.counters.clear()
    model = torch.compile(Broken(), backend="aot_eager")
    model(x())
    before = {name: dict(found) for name, found in dynamo.utils.counters.items()}
    with MODES[mode]() as recording:
        model(x())
    model(x())
    assert recording.counts() == {"barrier": 1, "all_reduce": 1}
    after = {name: dict(found) for name, found in dynamo.utils.counters.items()}
    assert after["stats"] == before["stats"]
    assert after["graph_break"] == before["graph_break"]
    assert after["frames"] == before["frames"] or mode == "op"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", ["collective", "op"])
def test_a_compiled_part_of_a_model_is_attributed_as_a_part(backend: str, mode: str) -> None:
    model = nn.Sequential(Reduced(), Reduced())
    model[1].compile(backend=backend)
    with MODES[mode]() as recording:
        for _ in range(2):
            model(x()).sum().backward()
    where = [(event.phase, event.module, event.module_call) for event in calls(recording)]
    for number in range(2):
        assert where[4 * number : 4 * number + 4] == [
            ("forward", "0", number), ("forward", "1", number),
            ("backward", "1", number), ("backward", "0", number),
        ]  # fmt: skip
    assert {event.module_class for event in calls(recording)} == {"Reduced"}


def reduced_twice(x: torch.Tensor) -> torch.Tensor:
    y = funcol.all_reduce(x.sin(), "sum", [0, 1])
    dynamo.graph_break()
    return funcol.all_reduce(y.cos(), "sum", [0, 1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_line_of_what_is_compiled_is_the_users(backend: str) -> None:
    def run() -> None:
        torch.compile(reduced_twice, backend=backend)(x()).sum().backward()

    with commtrace.record(detail="collective") as recording:
        run()
    first = reduced_twice.__code__.co_firstlineno
    names = [(each.source_function, each.source_file) for each in calls(recording)]
    lines = [each.source_line for each in calls(recording)]
    assert names == [(name, __file__) for name in ("reduced_twice", "reduced_twice", "run", "run")]
    # A compiled function is located at its first line, its resumption where that starts.
    assert first <= lines[0] < lines[1] <= first + 3
    assert lines[2:] == [run.__code__.co_firstlineno + 1] * 2


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_takes_no_models_name() -> None:
    with commtrace.record(detail="collective") as recording:
        torch.compile(reduced_twice, backend="aot_eager")(x())
        nn.Sequential(Reduced())(x())
    *_, last = calls(recording)
    assert (last.module, last.module_class) == ("0", "Reduced")


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_has_one_name_in_a_mode() -> None:
    model = torch.compile(Reduced(), backend="aot_eager")
    with commtrace.CommDebugMode() as mode:
        model(x())
    assert list(mode.comm_module_counts) == ["Global", "OptimizedModule"]
