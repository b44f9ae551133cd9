"""Benchmark cases, each run on dtensor_core and on torch.distributed.tensor, with its bar.

Both packages have the same public names, so a case is written once, against `Kit`. All cases run
as rank 0 of a fake process group of 4, which computes and dispatches like a real one but sends
nothing. The bar is the ratio to torch's DTensor that a case must not exceed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.kit import RANKS, Kit
from benchmarks.measure import Contender
from benchmarks.models import MODEL, NARROW, parallel_transformer, step_of, transformer_args
from tests.dtensor_core.models.small_models import MLPModule, ModelArgs

ROWS, COLUMNS = 64, 32
FLAT, SQUARE = (RANKS,), (2, RANKS // 2)


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark case.

    Attributes:
        kind: What `make(kit, mesh)` returns. "repeated": a function that is called repeatedly.
            "first": a function from a number to such a function, at sizes not seen before.
            "bytes": a function whose result is kept alive.
    """

    name: str
    about: str
    bar: float
    make: Callable[[Kit, DeviceMesh], Any]
    kind: str = "repeated"
    mesh_shape: tuple[int, ...] = FLAT


def _tensor(
    kit: Kit, mesh: DeviceMesh, shape: tuple[int, ...] = (ROWS, COLUMNS), *, sharded: bool = True
) -> Any:
    """Create a DTensor sharded by rows along the first mesh axis, or replicated."""
    api = kit.tensor
    placements = [api.Replicate()] * mesh.ndim
    if sharded:
        placements[0] = api.Shard(0)
    return api.distribute_tensor(torch.ones(shape), mesh, placements)


def _of_one(operator: Callable[[Any], object]) -> Callable[[Kit, DeviceMesh], Contender]:
    """Case of an operator on x [ROWS, COLUMNS], sharded by rows."""

    def make(kit: Kit, mesh: DeviceMesh) -> Contender:
        x = _tensor(kit, mesh)
        return lambda: operator(x)

    return make


def _of_two(operator: Callable[[Any, Any], object]) -> Callable[[Kit, DeviceMesh], Contender]:
    """Case of an operator on x and y, both [ROWS, COLUMNS] and sharded by rows."""

    def make(kit: Kit, mesh: DeviceMesh) -> Contender:
        x, y = _tensor(kit, mesh), _tensor(kit, mesh)
        return lambda: operator(x, y)

    return make


def _mm(kit: Kit, mesh: DeviceMesh) -> Contender:
    x, weight = _tensor(kit, mesh), _tensor(kit, mesh, (COLUMNS, COLUMNS), sharded=False)
    return lambda: torch.mm(x, weight)


def _linear(kit: Kit, mesh: DeviceMesh) -> Contender:
    x = _tensor(kit, mesh).requires_grad_()
    weight = _tensor(kit, mesh, (COLUMNS, COLUMNS), sharded=False).requires_grad_()

    def both_ways() -> None:
        result: Any = nn.functional.linear(x, weight).sum()
        result.to_local().backward()
        x.grad = weight.grad = None

    return both_ways


def _from_local(kit: Kit, mesh: DeviceMesh) -> Contender:
    local, placements = torch.ones(ROWS // RANKS, COLUMNS), [kit.tensor.Shard(0)]
    return lambda: kit.tensor.DTensor.from_local(local, mesh, placements)


def _redistribute(kit: Kit, mesh: DeviceMesh) -> Contender:
    x, full = _tensor(kit, mesh), [kit.tensor.Replicate()]
    return lambda: x.redistribute(mesh, full)


def _crossing(kit: Kit, mesh: DeviceMesh) -> Contender:
    """Case of from_local, redistribute and to_local, forward and backward."""
    local = torch.ones(ROWS // RANKS, COLUMNS, requires_grad=True)
    sharded, full = [kit.tensor.Shard(0)], [kit.tensor.Replicate()]

    def both_ways() -> None:
        x = kit.tensor.DTensor.from_local(local, mesh, sharded)
        x.redistribute(mesh, full).to_local().sum().backward()
        local.grad = None

    return both_ways


def _foreach_add(kit: Kit, mesh: DeviceMesh) -> Contender:
    xs, ys = ([_tensor(kit, mesh) for _ in range(10)] for _ in range(2))
    return lambda: torch._foreach_add(xs, ys)


def _first(operator: Callable[..., object]) -> Callable[[Kit, DeviceMesh], Any]:
    """Case of an operator on x of a new shape, sharded by rows, and a replicated square matrix."""

    def make(kit: Kit, mesh: DeviceMesh) -> Callable[[int], Contender]:
        def at(number: int) -> Contender:
            size = COLUMNS + 4 * number
            x = _tensor(kit, mesh, (2 * size, size))
            weight = _tensor(kit, mesh, (size, size), sharded=False)
            return lambda: operator(x, weight)

        return at

    return make


def _step(by_sequence: bool, args: ModelArgs = MODEL) -> Callable[[Kit, DeviceMesh], Contender]:
    def make(kit: Kit, mesh: DeviceMesh) -> Contender:
        return step_of(parallel_transformer(kit, mesh, args, by_sequence=by_sequence))

    return make


def _first_step(by_sequence: bool) -> Callable[[Kit, DeviceMesh], Any]:
    def make(kit: Kit, mesh: DeviceMesh) -> Callable[[int], Contender]:
        def at(number: int) -> Contender:
            between = 2 * RANKS * by_sequence  # not used by the other form
            args = transformer_args(dim=MODEL.dim + 4 * RANKS * number + between)
            return step_of(parallel_transformer(kit, mesh, args, by_sequence=by_sequence))

        return at

    return make


def _adamw(form: dict[str, Any]) -> Callable[[Kit, DeviceMesh], Contender]:
    """Case of an AdamW update of the Transformer's parameters."""

    def make(kit: Kit, mesh: DeviceMesh) -> Contender:
        model = parallel_transformer(kit, mesh, MODEL, by_sequence=True)
        optimizer = torch.optim.AdamW(model.parameters(), **form)
        step_of(model)()
        return optimizer.step

    return make


def _mlp_step(kit: Kit, mesh: DeviceMesh) -> Contender:
    styles = kit.parallel
    model = MLPModule("cpu")
    plan = {"net1": styles.ColwiseParallel(), "net2": styles.RowwiseParallel()}
    styles.parallelize_module(model, mesh, plan)
    x = torch.ones(ROWS, 10)

    def step() -> None:
        model.zero_grad()
        model(x).square().sum().backward()

    return step


def _kept(kit: Kit, mesh: DeviceMesh) -> Contender:
    """Case of wrapping an existing local tensor in a DTensor."""
    local = _tensor(kit, mesh).to_local()
    placements = [kit.tensor.Shard(0)]
    return lambda: kit.tensor.DTensor.from_local(local, mesh, placements)


CASES = (
    Case("add", "x + y, both sharded by rows", 0.85, _of_two(torch.add)),
    Case("mm", "x @ w, w replicated", 0.85, _mm),
    Case("relu", "relu(x)", 0.85, _of_one(torch.relu)),
    Case("sum", "x.sum()", 0.85, _of_one(torch.sum)),
    Case("add_scalar", "x + 2", 0.7, _of_one(lambda x: x + 2)),
    Case("view", "x.view(64, 4, 8)", 0.7, _of_one(lambda x: x.view(ROWS, 4, COLUMNS // 4))),
    Case("add_", "x += y", 0.7, _of_two(lambda x, y: x.add_(y))),
    Case("add_scalar_", "x += 2", 0.7, _of_one(lambda x: x.add_(2))),
    Case("from_local", "DTensor.from_local", 0.7, _from_local),
    Case("to_local", "x.to_local()", 0.7, _of_one(lambda x: x.to_local())),
    Case("redistribute", "x from S(0) to R", 0.5, _redistribute),
    Case("foreach_add", "_foreach_add of ten pairs", 0.7, _foreach_add),
    Case("linear", "linear and sum, forward and backward", 0.85, _linear),
    Case("crossing", "from_local, S(0) to R, to_local, and back", 0.7, _crossing),
    Case("first_add", "x + w at a new shape", 0.1, _first(lambda x, w: x + x), "first"),
    Case("first_mm", "x @ w at a new shape", 0.1, _first(torch.mm), "first"),
    Case("first_sum", "x.sum(0) at a new shape", 0.1, _first(lambda x, w: x.sum(0)), "first"),
    Case(
        "first_softmax",
        "x.softmax(1) at a new shape",
        0.1,
        _first(lambda x, w: x.softmax(1)),
        "first",
    ),
    Case("first_add_2d", "the same on 2x2", 0.1, _first(lambda x, w: x + x), "first", SQUARE),
    Case("first_mm_2d", "the same on 2x2", 0.1, _first(torch.mm), "first", SQUARE),
    Case("first_sum_2d", "the same on 2x2", 0.1, _first(lambda x, w: x.sum(0)), "first", SQUARE),
    Case(
        "first_softmax_2d",
        "the same on 2x2",
        0.1,
        _first(lambda x, w: x.softmax(1)),
        "first",
        SQUARE,
    ),
    Case("mlp", "a step of two layers", 0.65, _mlp_step),
    Case("transformer", "a step of 4 layers, tensor parallel", 0.65, _step(False)),
    Case("transformer_sp", "the same with sequence parallelism", 0.65, _step(True)),
    Case("transformer_narrow", "tensor parallel, of width 16", 0.6, _step(False, NARROW)),
    Case("first_step", "the first one, at a new size", 0.3, _first_step(False), "first"),
    Case("first_step_sp", "the same with SP", 0.3, _first_step(True), "first"),
    Case("adamw", "AdamW over its parameters, one by one", 0.8, _adamw({"foreach": False})),
    Case("adamw_foreach", "the same with foreach", 0.8, _adamw({"foreach": True})),
    Case("adamw_fused", "the same fused", 0.8, _adamw({"fused": True})),
    Case("memory", "a DTensor beyond its local tensor", 1.0, _kept, "bytes"),
)
