"""Costs of steps and links: defaults by device type, or values set on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtensor_core import DTensor, Partial, Replicate, Shard, observe, ones
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.errors import MeshError
from dtensor_core.experimental import Link, link_of, set_link
from dtensor_core.redistribute import cost
from dtensor_core.redistribute.cost import DEFAULT_LINKS, step_seconds, topology, topology_of
from dtensor_core.redistribute.plan import plan_placements
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing import fake_world, on_processes
from dtensor_core.testing.threads import on_threads


@pytest.fixture(autouse=True)
def _links_are_put_back() -> Iterator[None]:
    before = dict(cost._links)
    yield
    cost._links.clear()
    cost._links.update(before)
    cost.forget_decisions()


def spec_of(mesh: DeviceMesh, *placements: Any, shape: tuple[int, ...] = (1024, 1024)) -> Spec:
    full = torch.empty(shape, device="meta")
    return Spec(mesh, placements, TensorMeta(full.shape, full.stride(), full.dtype))


def axes_in_order(before: Spec, *after: Any) -> list[tuple[int, ...]]:
    return [step.axes for step in plan_placements(before, after).steps if step.communicates]


@pytest.mark.parametrize(
    ("kind", "source", "target", "seconds"),
    [
        # 1000 bytes in pieces of 250 over 4 ranks: 3/4 of the total crosses the wire, twice for an
        # all-reduce; an all-to-all sends 3/4 of the piece.
        ("all_gather", Shard(0), Replicate(), 1.0 + 750),
        ("reduce_scatter", Partial(), Shard(0), 1.0 + 750),
        ("all_reduce", Partial(), Replicate(), 2.0 + 1500),
        ("all_to_all", Shard(0), Shard(1), 1.0 + 750 / 4),
    ],
)
def test_a_step_costs_latency_and_the_bytes_of_a_ring(
    kind: str, source: Any, target: Any, seconds: float
) -> None:
    step = Step(kind, (0,), (source,), (target,), True)
    where = topology((4,), (Link(latency_s=1.0, bytes_per_s=1.0),))
    assert step_seconds(step, (100, 10), 1, where) == pytest.approx(seconds)


def test_links_have_defaults_by_device_type_also_of_unknown_ones() -> None:
    with fake_world(4):
        assert link_of(init_device_mesh("cpu", (4,)), 0) == DEFAULT_LINKS["cpu"]
        assert link_of(init_device_mesh("meta", (4,)), -1) == DEFAULT_LINKS["cuda"]


def test_a_link_is_set_by_mesh_and_axis_and_changes_plans() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        before = spec_of(mesh, Partial(), Partial())
        assert len(axes_in_order(before, Shard(0), Shard(1))) == 2
        for slow, fast in (("dp", "tp"), ("tp", "dp")):
            set_link(mesh, slow, latency_s=1e-3, bytes_per_s=1e6)
            set_link(mesh, fast, latency_s=1e-6, bytes_per_s=1e12)
            order = axes_in_order(before, Shard(0), Shard(1))
            assert order == ([(1,), (0,)] if slow == "dp" else [(0,), (1,)])
        assert link_of(mesh, "tp") == Link(latency_s=1e-3, bytes_per_s=1e6)
        assert link_of(init_device_mesh("cpu", (4,)), 0) == DEFAULT_LINKS["cpu"]


def test_joined_axes_are_as_slow_as_the_slowest_unless_they_are_set() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        set_link(mesh, "a", latency_s=3.0, bytes_per_s=30.0)
        set_link(mesh, "b", latency_s=2.0, bytes_per_s=20.0)
        both = mesh._flatten()
        assert topology_of(mesh).link((0, 1)) == Link(latency_s=3.0, bytes_per_s=20.0)
        set_link(both, 0, latency_s=1.0, bytes_per_s=10.0)
        assert topology_of(mesh).link((0, 1)) == Link(latency_s=1.0, bytes_per_s=10.0)


@on_threads(4)
def test_what_was_planned_before_is_planned_anew_when_a_link_is_set() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    x = DTensor.from_local(torch.ones(64, 64), mesh, [Partial(), Partial()])
    for slow, fast in (("a", "b"), ("b", "a")):
        set_link(mesh, slow, latency_s=1e-3, bytes_per_s=1e6)
        set_link(mesh, fast, latency_s=1e-6, bytes_per_s=1e12)
        reasons: list[observe.Reason] = []
        rank = mesh.get_rank()
        with observe.listening(lambda reason, to=reasons, me=rank: _keep(reason, to, me)):
            moved = x.redistribute(mesh, [Shard(0), Shard(1)])
        assert [reason.axis for reason in reasons] == [fast, slow]
        assert torch.equal(moved.full_tensor(), torch.full((64, 64), 4.0))


def _keep(reason: observe.Reason, reasons: list[observe.Reason], rank: int) -> None:
    """Keep the reasons of one rank: listeners receive the reasons of all ranks that are threads."""
    if dist.get_rank() == rank:
        reasons.append(reason)


def test_decisions_of_operators_are_forgotten_when_a_link_is_set() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        ones(8, 8, device_mesh=mesh).add(1)
        assert CACHE.entries
        set_link(mesh, 0, latency_s=1e-3, bytes_per_s=1e6)
        assert not CACHE.entries


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s"),
    [(-1.0, 1e9), (1e-5, 0.0), (float("inf"), 1e9), (1e-5, float("inf"))],
)
def test_a_link_that_cannot_be_is_refused_on_every_rank(
    latency_s: float, bytes_per_s: float
) -> None:
    @on_threads(2)
    def body() -> None:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        with pytest.raises(MeshError) as refused:
            set_link(mesh, "tp", latency_s=latency_s, bytes_per_s=bytes_per_s)
        assert str(refused.value) == (
            f"set_link of axis tp of {mesh}\n"
            f"  Found: latency_s={latency_s}, bytes_per_s={bytes_per_s}\n"
            "  Why: a latency is finite and not negative, a bandwidth finite and positive\n"
            "  Try: seconds and bytes per second, such as latency_s=2e-5, bytes_per_s=2.5e10"
        )
        assert link_of(mesh, "tp") == DEFAULT_LINKS["cpu"]

    body()


def ranks_that_differ() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    with pytest.raises(MeshError) as refused:
        set_link(mesh, 0, latency_s=1e-5 * (1 + dist.get_rank()), bytes_per_s=1e9)
    assert str(refused.value) == (
        f"set_link of axis tp of {mesh}\n"
        "  Found: latency_s from 1e-05 to 2e-05, bytes_per_s from 1e+09 to 1e+09\n"
        "  Why: ranks with different plans deadlock\n"
        "  Try: pass the same values on every rank, such as those that rank 0 measured"
    )
    assert link_of(mesh, 0) == DEFAULT_LINKS["cpu"]


test_ranks_that_set_different_links_are_reported = on_threads(2)(ranks_that_differ)
test_ranks_that_set_different_links_are_reported_on_gloo = on_processes(2)(ranks_that_differ)


def test_an_axis_that_the_mesh_does_not_have_is_named() -> None:
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        with pytest.raises(MeshError, match="axis 'dp' of"):
            set_link(mesh, "dp", latency_s=1.0, bytes_per_s=1.0)


PAIRS = [
    ((Shard(0), Shard(1)), (Shard(1), Shard(0))),
    ((Partial(), Shard(0)), (Shard(0), Shard(0))),
    ((Shard(0), Shard(0)), (Shard(1), Shard(1))),
]


def test_every_rank_plans_alike_also_outside_of_the_mesh() -> None:
    reasons = []
    for rank in (0, 3, 5, 7):
        with fake_world(8, rank=rank):
            mesh = DeviceMesh("cpu", [[0, 1, 2], [3, 4, 5]], mesh_dim_names=("a", "b"))
            set_link(mesh, "a", latency_s=1e-3, bytes_per_s=1e7)
            mesh._flatten()
            plans = [
                plan_placements(spec_of(mesh, *before, shape=(7, 1000)), after)
                for before, after in PAIRS
            ]
            steps = [[(step.kind, step.axes, step.target) for step in p.steps] for p in plans]
            reasons.append((steps, [p.seconds for p in plans]))
            cost._links.clear()
    assert all(each == reasons[0] for each in reasons)
