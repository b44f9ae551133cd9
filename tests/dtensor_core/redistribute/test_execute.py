"""Executing a plan equals creating the destination directly, and sends the announced bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import observe
from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.redistribute.distribute import keep
from dtensor_core.redistribute.execute import Origin, execute, execute_async
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing import on_processes
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads

SHAPES = ((8, 4), (7, 5), (1, 3), (0, 4), (2, 13), (12,), (3, 2, 5))


class SentBytes(TorchDispatchMode):
    """Payload bytes by kind, from the tensors passed to the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("_c10d_functional::")
        if name != func._schema.name and name != "wait_tensor":
            payload = result if name == "all_gather_into_tensor" else args[0]
            self.calls.append((_KINDS[name], payload.numel() * payload.element_size()))
        return result


_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


def layouts(ndim: int, axes: int, reductions: Sequence[str]) -> list[tuple[Placement, ...]]:
    """Every layout: replicated, sharded and strided, and partial with compatible reductions."""
    one: list[Placement] = [Replicate(), *(Partial(each) for each in reductions)]
    for dim in range(ndim):
        one += [Shard(dim), *(_StridedShard(dim, split_factor=f) for f in (2, 3))]
    found = []
    for each in itertools.product(one, repeat=axes):
        awaited = {p.reduce_op for p in each if isinstance(p, Partial)}
        if len(awaited) < 2 or awaited <= {"sum", "avg"}:
            found.append(each)
    return found


def laid_out(full: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Local part of `full`; partial values differ from rank to rank."""
    local = keep(full, spec, "test")
    for axis, placement in enumerate(spec.placements):
        assert spec.coords is not None
        coord, ranks = spec.coords[axis], spec.mesh_shape[axis]
        if ranks == 1:
            continue
        if placement.is_partial("sum") or placement.is_partial("avg"):
            local = local + (3.0 if coord == 0 else -3.0 if coord == 1 else 0.0)
        if placement.is_partial("max") and coord != 0:
            local = local - coord
        if placement.is_partial("min") and coord != 0:
            local = local + coord
        if placement.is_partial("product"):
            local = local * (4.0 if coord == 0 else 0.25 if coord == 1 else 1.0)
    return local


def journeys(meshes: Sequence[DeviceMesh], each: int, seed: int) -> None:
    """Check random pairs of layouts on every mesh, for every shape."""
    chance = random.Random(seed)
    for mesh, shape in itertools.product(meshes, SHAPES):
        full = torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 5
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        sources = layouts(len(shape), mesh.ndim, ("sum", "avg", "max", "min"))
        targets = layouts(len(shape), mesh.ndim, ())
        for _ in range(each):
            before = Spec(mesh, chance.choice(sources), meta)
            after = before.with_placements(chance.choice(targets))
            check(full, before, after, chance.random() < 0.5)


def check(full: torch.Tensor, before: Spec, after: Spec, waiting: bool) -> None:
    local = laid_out(full, before)
    plan = plan_between(before, after)
    run = execute if waiting else execute_async
    with SentBytes() as sent:
        moved = run(local, before, plan, Origin("test"))
    coords = before.coords
    assert coords is not None
    planned = [
        (
            step.kind,
            step.payload_bytes(before.shape, before.dtype.itemsize, before.mesh_shape, coords),
        )
        for step in plan.steps
        if step.communicates
    ]
    expected = keep(full, after, "test")
    assert moved.shape == expected.shape
    if after.sums:  # the distribution of a sum over partial sums is arbitrary: reduce them
        gathering = plan_between(after, after.replicated())
        moved, expected = execute(moved + 0, after, gathering, Origin("test")), full
    torch.testing.assert_close(
        moved + 0, expected, msg=lambda m: f"{before} -> {after} by {plan.steps}: {m}"
    )
    assert sent.calls == planned


REDUCTIONS = ("sum", "avg", "product", "max", "min")
MESH_SHAPES = (
    (1,),
    (2,),
    (3,),
    (4,),
    (1, 3),
    (2, 1),
    (2, 2),
    (2, 3),
    (1, 2, 2),
    (2, 1, 3),
    (2, 2, 2),
)


@st.composite
def redistributions(draw: st.DrawFn) -> tuple[Any, Any, Any, Any, bool]:
    """Draw a mesh's shape, a tensor's shape, two layouts, and whether to wait."""
    mesh_shape = draw(st.sampled_from(MESH_SHAPES))
    shape = draw(st.lists(st.sampled_from((0, 1, 2, 3, 5, 7, 8, 12)), min_size=1, max_size=3))
    dims = st.integers(0, len(shape) - 1)
    strided = st.builds(
        lambda dim, blocks: _StridedShard(dim, split_factor=blocks), dims, st.integers(1, 4)
    )
    replicated_or_sharded = st.one_of(st.just(Replicate()), st.builds(Shard, dims), strided)
    mixing = draw(st.sampled_from((("sum", "avg"), *((each,) for each in REDUCTIONS))))
    pending = st.builds(Partial, st.sampled_from(mixing))
    source = draw(st.tuples(*(st.one_of(replicated_or_sharded, pending) for _ in mesh_shape)))
    target = tuple(
        draw(
            st.one_of(replicated_or_sharded, st.just(before))
            if before.is_partial()
            else replicated_or_sharded
        )
        for before in source
    )
    return mesh_shape, tuple(shape), source, target, draw(st.booleans())


@given(redistributions())
@settings(max_examples=150)
def test_executing_a_plan_equals_making_the_destination_directly(drawn: Any) -> None:
    mesh_shape, shape, source, target, waiting = drawn

    def body() -> None:
        full = 2.0 ** (torch.arange(torch.Size(shape).numel()) % 7).reshape(shape)
        spec = Spec(
            kept_mesh(mesh_shape), source, TensorMeta(full.shape, full.stride(), full.dtype)
        )
        check(full, spec, spec.with_placements(target), waiting)

    run_threads(body, torch.Size(mesh_shape).numel())


@pytest.mark.parametrize("reduce_op", ["product", "max", "min"])
def test_partial_values_of_one_reduction_become_those_of_another_on_another_axis(
    reduce_op: str,
) -> None:
    def body() -> None:
        full = torch.arange(40.0).reshape(8, 5)
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        spec = Spec(kept_mesh((2, 2)), (Replicate(), Partial()), meta)
        after = spec.with_placements((Partial(reduce_op), Shard(1)))
        moved = execute(laid_out(full, spec), spec, plan_between(spec, after), Origin("test"))
        back = plan_between(after, after.replicated())
        assert torch.equal(execute(moved, after, back, Origin("test")), full)

    run_threads(body, 4)


def joined_mesh(shape: Sequence[int], ranks: Sequence[int] | None = None) -> DeviceMesh:
    """Create a mesh with a flattened group for every combination of its axes."""
    names = ("a", "b", "c")[: len(shape)]
    every = torch.arange(torch.Size(shape).numel()) if ranks is None else torch.tensor(ranks)
    mesh = DeviceMesh("cpu", every.reshape(tuple(shape)), mesh_dim_names=names)
    for count in range(2, len(names) + 1):
        for some in itertools.combinations(names, count):
            mesh[some]._flatten()
    return mesh


@on_threads(6)
def test_steps_on_joined_axes_equal_making_the_destination_directly() -> None:
    journeys([joined_mesh((2, 3)), joined_mesh((3, 2))], 10, seed=2)


@on_threads(8)
def test_steps_on_three_joined_axes_equal_making_the_destination_directly() -> None:
    journeys([joined_mesh((2, 2, 2))], 4, seed=3)


@on_threads(4)
def test_ranks_may_stand_in_any_order_on_the_mesh() -> None:
    """torch numbers the ranks of a group by their global rank, not by their coordinate."""
    orders = ((3, 1, 0, 2), (1, 0, 3, 2), (2, 3, 0, 1))
    line = [DeviceMesh("cpu", list(order)) for order in orders]
    journeys([*line, *(joined_mesh((2, 2), order) for order in orders)], 2, seed=4)


def journeys_on_processes() -> None:
    """Even and uneven shards, joint and separate axes; and dtypes that gloo lacks."""
    mesh = joined_mesh((2, 2), (2, 0, 3, 1))
    journeys([mesh], 3, seed=5)
    for dtype, shape in itertools.product((torch.complex64, torch.int16), ((8, 4), (5, 3))):
        full = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        plain = layouts(2, 1, ())[:4]
        for source, target in itertools.permutations(plain, 2):
            spec = Spec(mesh["a"], source, meta)
            check(full, spec, spec.with_placements(target), True)
    # The gradient of a sum is expanded: all strides are 0.
    full = torch.ones(1, 1).expand(8, 4)
    spec = Spec(mesh["a"], (Shard(0),), TensorMeta(full.shape, (4, 1), full.dtype))
    after = spec.with_placements((Shard(1),))
    moved = execute(full[:4], spec, plan_between(spec, after), Origin("test"))
    assert moved.equal(torch.ones(8, 2))


test_journeys_hold_on_gloo = on_processes(4)(journeys_on_processes)


@on_threads(4)
def test_uneven_gathers_on_joined_axes_are_one_and_right() -> None:
    mesh = joined_mesh((2, 2))
    for shape in ((7, 3), (5, 1), (1, 1), (3, 0), (9, 2)):
        full = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        spec = Spec(mesh, (Shard(0), Shard(0)), TensorMeta(full.shape, full.stride(), full.dtype))
        with SentBytes() as sent:
            plan = plan_between(spec, spec.replicated())
            moved = execute(keep(full, spec, ""), spec, plan, Origin("test"))
        assert torch.equal(moved, full)
        assert [kind for kind, _ in sent.calls] == ["all_gather"]


@on_threads(4)
def test_axes_that_are_joined_later_are_joined_from_then_on() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    full = torch.arange(12.0)
    spec = Spec(mesh, (Shard(0), Shard(0)), TensorMeta(full.shape, full.stride(), full.dtype))
    before = plan_between(spec, spec.replicated())
    counts = []
    for flatten in (False, True):
        if flatten:
            mesh._flatten()
        with SentBytes() as sent:
            moved = execute(keep(full, spec, ""), spec, before, Origin("test"))
        assert torch.equal(moved, full)
        counts.append(len(sent.calls))
    assert counts == [2, 1]


@on_threads(4)
def test_a_reason_is_in_force_while_its_collective_runs() -> None:
    mesh = kept_mesh((4,))
    full = torch.arange(8.0)
    meta = TensorMeta(full.shape, full.stride(), full.dtype)
    before, after = Spec(mesh, (Shard(0),), meta), Spec(mesh, (Replicate(),), meta)
    seen: list[observe.Reason | None] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func._schema.name.startswith("_c10d_functional::all"):
                seen.append(observe.current())
            return func(*args, **(kwargs or {}))

    with Watch():
        execute(keep(full, before, ""), before, plan_between(before, after), Origin("op", "x"))
    assert seen == [
        observe.Reason("op", "x", "f32[8] axis0:S(0)", "f32[8] axis0:R", "all_gather", "axis0", 32)
    ]


@on_threads(4)
def test_a_reason_names_the_axes_that_are_joined() -> None:
    mesh = joined_mesh((2, 2))
    meta = TensorMeta(torch.Size((8,)), (1,), torch.float32)
    before = Spec(mesh, (Partial(), Partial()), meta)
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        plan = plan_between(before, before.replicated())
        execute(torch.ones(8), before, plan, Origin("op"))
    assert {each.axis for each in reasons} == {"a+b"}


@on_threads(2)
def test_an_average_is_reduced_whatever_the_backend_knows() -> None:
    mesh = kept_mesh((2,))
    for dtype, mean in ((torch.float32, 1.5), (torch.int64, 1)):
        local = torch.full((4,), 1 + mesh.get_local_rank(), dtype=dtype)
        meta = TensorMeta(local.shape, local.stride(), local.dtype)
        before = Spec(mesh, (Partial("avg"),), meta)
        for target in (Replicate(), Shard(0)):
            after = before.with_placements((target,))
            moved = execute(local, before, plan_between(before, after), Origin("test"))
            assert moved.dtype is dtype
            assert moved.unique().tolist() == [mean]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@on_threads(2)
def test_an_average_of_halves_of_complex_numbers_is_divided() -> None:
    mesh = kept_mesh((2,))
    local = torch.full((4,), 1 + mesh.get_local_rank(), dtype=torch.complex64).to(torch.complex32)
    before = Spec(mesh, (Partial("avg"),), TensorMeta(local.shape, local.stride(), local.dtype))
    plan = plan_between(before, before.replicated())
    moved = execute(local, before, plan, Origin("test"))
    assert moved.dtype is torch.complex32
    assert set(moved.tolist()) == {1.5}


@on_threads(2)
def test_sums_and_averages_become_each_other_without_communication() -> None:
    mesh = kept_mesh((2,))
    local = torch.tensor([1.0, 2.0]) * (1 + mesh.get_local_rank())
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    for one, other in itertools.permutations(("sum", "avg")):
        before = Spec(mesh, (Partial(one),), meta)
        after = before.with_placements((Partial(other),))
        with SentBytes() as sent:
            pending = execute(local, before, plan_between(before, after), Origin("test"))
        assert not sent.calls
        values = [
            execute(t, spec, plan_between(spec, spec.replicated()), Origin("test"))
            for t, spec in ((local, before), (pending, after))
        ]
        torch.testing.assert_close(*values)


@pytest.mark.parametrize(
    "reduce_op", ["sum", "avg", "product", "prod", "min", "max", "band", "bor", "bxor"]
)
def test_a_replicated_tensor_becomes_partial_sums_that_reduce_to_it_exactly(reduce_op: str) -> None:
    @on_threads(3)
    def body() -> None:
        mesh = kept_mesh((3,))
        full = torch.tensor([3, -7, 0, 12])
        values: Sequence[torch.Tensor] = [full, full.double() / 3]
        for value in values if reduce_op[0] != "b" else values[:1]:
            meta = TensorMeta(value.shape, value.stride(), value.dtype)
            before = Spec(mesh, (Replicate(),), meta)
            after = before.with_placements((Partial(reduce_op),))
            pending_part = execute(value, before, plan_between(before, after), Origin("test"))
            back = execute(pending_part, after, plan_between(after, before), Origin("test"))
            if reduce_op == "avg":
                torch.testing.assert_close(back.double(), value.double())
            else:
                assert torch.equal(back, value)

    body()


def test_what_arrives_is_contiguous_also_where_blocks_could_be_joined_as_a_view() -> None:
    """Local operators rely on it: views, and kernels that need a dense last dim."""

    @on_threads(4)
    def body() -> None:
        full = torch.randn(4, 4, 8, 8)
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        ways = [Replicate(), *(Shard(dim) for dim in range(4))]
        for before, after in itertools.product(ways, ways):
            source = Spec(kept_mesh((4,)), (before,), meta)
            target = source.with_placements((after,))
            local = keep(full, source, "test")
            arrived = execute(local, source, plan_between(source, target), Origin("test"))
            assert arrived.is_contiguous()

    body()
