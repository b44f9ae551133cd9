"""Executing a plan equals making the destination directly, and sends the bytes announced."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import observe
from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.redistribute.distribute import keep
from dtensor_core.redistribute.execute import Cause, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing.threads import kept_mesh, on_threads

MESHES = ((4,), (2, 2), (4, 1))
SHAPES = ((8, 4), (7, 5), (1, 3), (0, 4), (2, 13), (12,))


class SentBytes(TorchDispatchMode):
    """Payload bytes by kind, read off the tensors that the operators were handed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("_c10d_functional::")
        if name != func._schema.name and name != "wait_tensor":
            payload = result if name == "all_gather_into_tensor" else args[0]
            self.calls.append((name, payload.numel() * payload.element_size()))
        return result


def layouts(ndim: int, axes: int, partial: bool) -> list[tuple[Placement, ...]]:
    one: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(ndim))]
    if partial:
        one += [Partial(), Partial("max")]
    if ndim and axes == 1:
        one.append(_StridedShard(0, split_factor=2))
    every = itertools.product(one, repeat=axes)
    return [each for each in every if len({p for p in each if p.is_partial()}) < 2]


def laid_out(whole: torch.Tensor, spec: Spec) -> torch.Tensor:
    """The local part of `whole`; of partial layouts, addends that differ from rank to rank."""
    local = keep(whole, spec, "test")
    for axis, placement in enumerate(spec.placements):
        assert spec.coords is not None
        coord, ranks = spec.coords[axis], spec.mesh_shape[axis]
        if placement.is_partial("sum") and ranks > 1:
            local = local + (3.0 if coord == 0 else -3.0 if coord == 1 else 0.0)
        if placement.is_partial("max") and coord != 0:
            local = local - coord
    return local


@on_threads(4)
def test_executing_a_plan_equals_making_the_destination_directly() -> None:
    chance = random.Random(0)
    for mesh_shape, shape in itertools.product(MESHES, SHAPES):
        mesh = kept_mesh(mesh_shape)
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 5
        meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
        sources = layouts(len(shape), len(mesh_shape), partial=True)
        targets = layouts(len(shape), len(mesh_shape), partial=False)
        pairs = list(itertools.product(sources, targets))
        for source, target in chance.sample(pairs, min(len(pairs), 40)):
            before, after = Spec(mesh, source, meta), Spec(mesh, target, meta)
            check(whole, before, after)


def check(whole: torch.Tensor, before: Spec, after: Spec) -> None:
    local = laid_out(whole, before)
    with SentBytes() as sent:
        announced: list[tuple[str, int]] = []
        coords = before.coords
        assert coords is not None
        plan = plan_between(before, after)
        for step in plan.steps:
            if step.communicates:
                payload = step.payload_bytes(
                    before.shape, before.dtype.itemsize, before.mesh_shape, coords
                )
                announced.append((step.kind, payload))
        moved = execute(local, before, plan, Cause("test"))
    expected = keep(whole, after, "test")
    torch.testing.assert_close(moved, expected, msg=lambda m: f"{before} -> {after}: {m}")
    assert [nbytes for _, nbytes in sent.calls] == [nbytes for _, nbytes in announced]
    assert [_KINDS[name] for name, _ in sent.calls] == [kind for kind, _ in announced]


_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


@on_threads(4)
def test_an_announcement_is_in_force_while_its_collective_runs() -> None:
    mesh = kept_mesh((4,))
    whole = torch.arange(8.0)
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    before, after = Spec(mesh, (Shard(0),), meta), Spec(mesh, (Replicate(),), meta)
    seen: list[observe.Announcement | None] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func._schema.name.startswith("_c10d_functional::all"):
                seen.append(observe.current())
            return func(*args, **(kwargs or {}))

    with Watch():
        execute(keep(whole, before, ""), before, plan_between(before, after), Cause("op", "x"))
    assert seen == [
        observe.Announcement(
            "op", "x", "f32[8] axis0:S(0)", "f32[8] axis0:R", "all_gather", "axis0", 32
        )
    ]


@on_threads(2)
def test_an_average_is_reduced_whatever_the_backend_knows() -> None:
    mesh = kept_mesh((2,))
    local = torch.full((4,), float(mesh.get_local_rank()))
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    before = Spec(mesh, (Partial("avg"),), meta)
    for target in (Replicate(), Shard(0)):
        after = before.with_placements((target,))
        moved = execute(local, before, plan_between(before, after), Cause("test"))
        assert moved.unique().tolist() == [0.5]


@pytest.mark.parametrize(
    "reduce_op", ["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]
)
def test_a_whole_tensor_becomes_addends_that_reduce_to_it_exactly(reduce_op: str) -> None:
    @on_threads(3)
    def body() -> None:
        mesh = kept_mesh((3,))
        whole = torch.tensor([3, -7, 0, 12])
        values: Sequence[torch.Tensor] = [whole, whole.double() / 3]
        for value in values if reduce_op[0] != "b" else values[:1]:
            meta = TensorMeta(value.shape, value.stride(), value.dtype)
            before = Spec(mesh, (Replicate(),), meta)
            after = before.with_placements((Partial(reduce_op),))
            addend = execute(value, before, plan_between(before, after), Cause("test"))
            back = execute(addend, after, plan_between(after, before), Cause("test"))
            if reduce_op == "avg":
                torch.testing.assert_close(back.double(), value.double())
            else:
                assert torch.equal(back, value)

    body()
