"""Plans are empty for no change, never cost more than the greedy plan, and need no new group."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtensor_core.layout import AxisSharding, held_extents, united
from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.redistribute.cost import Link, Topology, step_seconds, topology
from dtensor_core.redistribute.plan import EMPTY, Placements, plan
from dtensor_core.redistribute.transitions import (
    Step,
    closed,
    gradient_placement,
    is_closed,
    transition,
)

LINK = Link(latency_s=1e-5, bytes_per_s=1e10)
SLOW = Link(latency_s=1e-4, bytes_per_s=1e9)

placements = st.sampled_from(
    [Replicate(), Shard(0), Shard(1), Partial(), _StridedShard(0, split_factor=2)]
)
replicated_or_sharded = st.sampled_from(
    [Replicate(), Shard(0), Shard(1), _StridedShard(1, split_factor=3)]
)
journeys = st.lists(st.tuples(placements, replicated_or_sharded), min_size=1, max_size=3)
sizes = st.sampled_from([0, 1, 2, 5, 7, 8, 12, 1000])


def mesh(shape: tuple[int, ...], *joined: tuple[int, ...]) -> Topology:
    return topology(shape, (LINK,) * len(shape), dict.fromkeys(joined, LINK))


def meshes(num_axes: int) -> st.SearchStrategy[Topology]:
    shapes = st.tuples(*(st.sampled_from([1, 2, 3]) for _ in range(num_axes)))
    pairs = list(itertools.combinations(range(num_axes), 2))
    groups = st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])
    return st.builds(
        lambda shape, groups: mesh(shape, *(g for g in groups if all(shape[a] > 1 for a in g))),
        shapes,
        groups,
    )


def seconds(steps: list[Step], shape: tuple[int, ...], where: Topology) -> float:
    return sum(step_seconds(step, shape, 4, where) for step in steps)


def greedy(source: Placements, target: Placements, where: Topology) -> list[Step]:
    """Reference plan: replicate all axes, last axis first; then shard, first axis first."""
    live = [axis for axis, ranks in enumerate(where.shape) if ranks > 1]
    state = tuple(source[a] if a in live else target[a] for a in range(len(source)))
    steps: list[Step] = []
    for axis in reversed(live):
        state = go(steps, state, axis, Replicate())
    for axis in live:
        state = go(steps, state, axis, target[axis])
    return steps


def go(steps: list[Step], state: Placements, axis: int, placement: Placement) -> Placements:
    if state[axis] is placement:
        return state
    row = transition(state[axis], placement)
    assert row is not None
    reached = (*state[:axis], placement, *state[axis + 1 :])
    steps.append(Step(row.kind, (axis,), state, reached, row.communicates))
    return reached


@given(st.lists(placements, min_size=1, max_size=3))
def test_no_change_needs_no_step(source: list[Placement]) -> None:
    where = mesh((2,) * len(source))
    assert plan(tuple(source), tuple(source), (8, 4), 4, where) is EMPTY


@given(st.data(), journeys, st.tuples(sizes, sizes))
def test_no_plan_is_dearer_than_the_greedy_one(
    data: st.DataObject, ends: list[tuple[Placement, Placement]], shape: tuple[int, int]
) -> None:
    source, target = tuple(a for a, _ in ends), tuple(b for _, b in ends)
    where = data.draw(meshes(len(ends)))
    found = plan(source, target, shape, 4, where)
    assert found.seconds <= seconds(greedy(source, target, where), shape, where) + 1e-12
    assert found.seconds == pytest.approx(seconds(list(found.steps), shape, where))


@given(st.data(), journeys, st.tuples(sizes, sizes))
def test_steps_chain_from_source_to_target_and_never_need_another_group(
    data: st.DataObject, ends: list[tuple[Placement, Placement]], shape: tuple[int, int]
) -> None:
    source, target = tuple(a for a, _ in ends), tuple(b for _, b in ends)
    where = data.draw(meshes(len(ends)))
    live = [axis for axis, ranks in enumerate(where.shape) if ranks > 1]
    state = source
    for step in plan(source, target, shape, 4, where).steps:
        assert [step.source[a] for a in live] == [state[a] for a in live]
        changed = [a for a in live if step.source[a] is not step.target[a]]
        assert set(changed) <= set(step.axes)
        assert len(step.axes) == 1 or step.axes in where.joined
        assert_self_sufficient(step, shape, where.shape)
        state = step.target
    assert [state[a] for a in live] == [target[a] for a in live]


def assert_self_sufficient(step: Step, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> None:
    """Check element by element that the group holds the same before and after the step."""
    outside = [range(n) if a not in step.axes else (None,) for a, n in enumerate(mesh_shape)]
    for place in itertools.product(*outside):
        for dim, size in enumerate(shape):
            held = [together(placed, place, mesh_shape, dim, size) for placed in ends(step)]
            assert held[0] == held[1]


def ends(step: Step) -> tuple[Placements, Placements]:
    return step.source, step.target


def together(placed, place, mesh_shape, dim, size):  # type: ignore[no-untyped-def]
    held = []
    inside = [
        range(n) if here is None else (here,) for here, n in zip(place, mesh_shape, strict=True)
    ]
    for coords in itertools.product(*inside):
        shardings = [
            AxisSharding(mesh_shape[axis], coords[axis], getattr(each, "split_factor", 1))
            for axis, each in enumerate(placed)
            if each.sharded_dim == dim
        ]
        held += held_extents(size, shardings)
    return united(held)


def test_single_steps_are_those_of_the_table() -> None:
    strided = _StridedShard(0, split_factor=2)
    expected = {
        (Replicate(), Shard(0)): ("slice", 0),
        (Replicate(), strided): ("slice", 0),
        (Replicate(), Partial()): ("to_partial", 0),
        (Shard(0), Replicate()): ("all_gather", 1),
        (strided, Replicate()): ("all_gather", 1),
        (Shard(0), Shard(1)): ("all_to_all", 1),
        (Shard(0), strided): ("all_to_all", 1),
        (strided, Shard(1)): ("all_to_all", 1),
        (Partial(), Replicate()): ("all_reduce", 1),
        (Partial(), Shard(0)): ("reduce_scatter", 1),
        (Partial(), strided): ("reduce_scatter", 1),
        (Partial(), Partial("avg")): ("rescale", 0),
        (Partial("avg"), Partial()): ("rescale", 0),
    }
    for (source, target), step in expected.items():
        (found,) = plan((source,), (target,), (8, 8), 4, mesh((4,))).steps
        assert (found.kind, int(found.communicates)) == step, f"{source} -> {target}"


def test_partial_values_of_other_reductions_are_reduced_first() -> None:
    steps = plan((Partial("max"),), (Partial(),), (8,), 4, mesh((2,))).steps
    assert [step.kind for step in steps] == ["all_reduce", "to_partial"]


@pytest.mark.parametrize("reduce_op", ["product", "max", "min", "sum"])
def test_nothing_becomes_partial_while_another_axis_awaits_another_reduction(
    reduce_op: str,
) -> None:
    """The identity of a reduction is a number in the other: 1 + 1, for products."""
    source, target = (Replicate(), Partial()), (Partial(reduce_op), Shard(0))
    steps = plan(source, target, (8, 8), 4, mesh((2, 2))).steps
    first = "to_partial" if reduce_op == "sum" else "reduce_scatter"
    assert steps[0].kind == first
    assert {step.kind for step in steps} == {"to_partial", "reduce_scatter"}


def test_an_axis_of_one_rank_needs_no_step() -> None:
    assert plan((Partial(),), (Shard(0),), (8,), 4, mesh((1,))) is EMPTY
    (step,) = plan((Shard(0), Shard(0)), (Shard(1), Replicate()), (8, 8), 4, mesh((1, 4))).steps
    assert (step.kind, step.axes) == ("all_gather", (1,))


def test_reduce_scatter_is_taken_rather_than_all_reduce_and_slice() -> None:
    (step,) = plan((Partial(),), (Shard(0),), (1024,), 4, mesh((4,))).steps
    assert step.kind == "reduce_scatter"


def test_an_outer_shard_is_gathered_after_the_inner_one() -> None:
    steps = plan((Shard(0), Shard(0)), (Replicate(), Shard(0)), (64,), 4, mesh((2, 2))).steps
    assert [(step.kind, step.axis) for step in steps] == [
        ("all_gather", 1),
        ("all_gather", 0),
        ("slice", 1),
    ]


INNER = (_StridedShard(0, split_factor=4), Shard(0))


def test_an_axis_that_shards_inside_of_a_later_one_is_gathered_alone() -> None:
    """The layout of weights sharded by tensor parallelism first, then by data parallelism."""
    (step,) = plan(INNER, (Replicate(), Shard(0)), (64,), 4, mesh((2, 4))).steps
    assert (step.kind, step.axes) == ("all_gather", (0,))
    (step,) = plan((Partial(), Shard(0)), INNER, (64,), 4, mesh((2, 4))).steps
    assert (step.kind, step.axes) == ("reduce_scatter", (0,))
    (step,) = plan((Replicate(), Shard(0)), INNER, (64,), 4, mesh((2, 4))).steps
    assert (step.kind, step.communicates) == ("slice", False)


def test_the_order_of_two_axes_changes_by_one_exchange_where_they_are_joined() -> None:
    outer = (Shard(0), Shard(0))
    (step,) = plan(outer, INNER, (64, 3), 4, mesh((2, 4), (0, 1))).steps
    assert (step.kind, step.axes) == ("all_to_all", (0, 1))
    assert step.payload_bytes((64, 3), 4, (2, 4), (0, 0)) == 64 * 3 * 4 // 8


def test_the_order_of_two_axes_changes_without_gathering_all_of_a_large_tensor() -> None:
    """On separate groups: the inner axis gathers, the outer exchanges, the inner slices."""
    outer = (Shard(0), Shard(0))
    shape = (1 << 24,)
    steps = plan(outer, INNER, shape, 4, mesh((2, 4))).steps
    assert [(step.kind, step.axes) for step in steps] == [
        ("all_gather", (1,)),
        ("all_to_all", (0,)),
        ("slice", (1,)),
    ]


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("all_gather", (Shard(0), Shard(0)), (Replicate(), Replicate())),
        ("all_gather", (Shard(1), Shard(0)), (Replicate(), Replicate())),
        ("all_gather", INNER, (Replicate(), Replicate())),
        ("all_reduce", (Partial(), Partial()), (Replicate(), Replicate())),
        ("all_reduce", (Partial(), Partial("avg")), (Replicate(), Replicate())),
        ("reduce_scatter", (Partial(), Partial()), (Shard(0), Shard(0))),
        ("reduce_scatter", (Partial(), Partial()), (Shard(1), Shard(0))),
        ("reduce_scatter", (Partial(), Partial()), INNER),
        ("all_to_all", (Shard(0), Shard(0)), (Shard(1), Shard(1))),
        ("all_to_all", (Shard(0), Shard(1)), (Shard(1), Shard(0))),
    ],
)
def test_steps_of_one_kind_on_joined_axes_are_one(
    kind: str, source: Placements, target: Placements
) -> None:
    for shape in ((64, 32), (7, 5), (1, 3), (3, 0)):
        joined = plan(source, target, shape, 4, mesh((2, 4), (0, 1)))
        apart = plan(source, target, shape, 4, mesh((2, 4)))
        assert [(step.kind, step.axes) for step in joined.steps] == [(kind, (0, 1))]
        assert len(apart.steps) > 1
        assert joined.seconds < apart.seconds


def test_axes_that_do_not_stand_side_by_side_are_joined() -> None:
    partial, full = (Partial(), Partial(), Partial()), (Replicate(), Shard(0), Replicate())
    steps = plan(partial, full, (8, 8), 4, mesh((2, 2, 2), (0, 2))).steps
    assert sorted((step.kind, step.axes) for step in steps) == [
        ("all_reduce", (0, 2)),
        ("reduce_scatter", (1,)),
    ]


def test_a_slow_joined_group_is_left_alone() -> None:
    where = topology((2, 4), (LINK, LINK), {(0, 1): Link(latency_s=1.0, bytes_per_s=1.0)})
    steps = plan((Shard(0), Shard(0)), (Replicate(), Replicate()), (64,), 4, where).steps
    assert [step.axes for step in steps] == [(1,), (0,)]


def test_the_faster_axis_moves_more() -> None:
    """P to S on an axis, then on the other, in the order that sends less over the slow one."""
    source, target = (Partial(), Partial()), (Shard(0), Shard(1))
    for slow in (0, 1):
        links = tuple(SLOW if axis == slow else LINK for axis in range(2))
        steps = plan(source, target, (1024, 1024), 4, topology((4, 4), links)).steps
        assert [step.axis for step in steps] == [1 - slow, slow]


@pytest.mark.parametrize(
    ("kind", "source", "target", "payload"),
    [
        ("all_gather", Shard(0), Replicate(), 4 * 2 * 3 * 4),
        ("reduce_scatter", Partial(), Shard(0), 4 * 2 * 3 * 4),
        ("all_reduce", Partial(), Replicate(), 5 * 3 * 4),
        ("all_to_all", Shard(0), Shard(1), 2 * 3 * 4),
    ],
)
def test_payloads_count_padded_pieces(
    kind: str, source: Placement, target: Placement, payload: int
) -> None:
    """[5, 3] of 4 bytes over 4 ranks: pieces of 2, 2, 1 and 0 rows; coordinate 0 holds 2."""
    (step,) = plan((source,), (target,), (5, 3), 4, mesh((4,))).steps
    assert step.kind == kind
    assert step.payload_bytes((5, 3), 4, (4,), (0,)) == payload


def test_the_longest_piece_need_not_be_the_first() -> None:
    """4 elements, sharded in 3 blocks over one axis of 2 ranks, then over another."""
    layout = (_StridedShard(0, split_factor=3), Shard(0))
    (step,) = plan(layout, (Replicate(), Replicate()), (4,), 1, mesh((2, 2), (0, 1))).steps
    pieces = [
        math.prod(step_shape)
        for step_shape in (
            (sum(e.size for e in held_extents(4, [AxisSharding(2, a, 3), AxisSharding(2, b)])),)
            for a in range(2)
            for b in range(2)
        )
    ]
    assert step.payload_bytes((4,), 1, (2, 2), (0, 0)) == 4 * max(pieces)


@given(
    st.integers(0, 30),
    st.lists(
        st.tuples(st.sampled_from([2, 3]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3])),
        min_size=2,
        max_size=3,
    ),
    st.data(),
)
def test_what_is_reasoned_about_groups_is_what_they_hold(
    size: int, axes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """`is_closed` is never true if axes outside of a step hold something else afterwards."""
    inside = data.draw(st.lists(st.booleans(), min_size=len(axes), max_size=len(axes)))
    before = tuple((n, f, i) for (n, f, _), i in zip(axes, inside, strict=True))
    after = tuple((n, g if i else f, i) for (n, f, g), i in zip(axes, inside, strict=True))
    if not any(inside) or not is_closed(size, before, after):
        return
    outside = [range(n) if not i else (None,) for (n, _, _), i in zip(axes, inside, strict=True)]
    shape = tuple(n for n, _, _ in axes)
    for place in itertools.product(*outside):
        held = [
            together([_strided(f) for _, f, _ in shardings], place, shape, 0, size)
            for shardings in (before, after)
        ]
        assert held[0] == held[1]


def _strided(blocks: int) -> Placement:
    return _StridedShard(0, split_factor=blocks)


def test_a_group_that_lacks_something_is_reported() -> None:
    source, target = (Shard(0), Shard(0)), (Replicate(), Shard(0))
    assert not closed(source, target, (0,), (64,), (2, 2))
    assert closed(source, (Shard(0), Replicate()), (1,), (64,), (2, 2))


def test_gradients_of_partial_sums_are_replicated() -> None:
    assert gradient_placement(Partial()) is Replicate()
    assert gradient_placement(Shard(1)) is Shard(1)
