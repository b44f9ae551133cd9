"""Plans are empty for no change, never dearer than the greedy one, and respect nesting."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtensor_core.placement import Partial, Placement, Replicate, Shard, sharded_dim
from dtensor_core.redistribute.cost import Link, step_seconds
from dtensor_core.redistribute.pieces import piece_sizes
from dtensor_core.redistribute.plan import EMPTY, Placements, plan
from dtensor_core.redistribute.transitions import Step, gradient_placement, transition

LINK = Link(latency_s=1e-5, bytes_per_s=1e10)

placements = st.sampled_from([Replicate(), Shard(0), Shard(1), Partial()])
whole_or_cut = st.sampled_from([Replicate(), Shard(0), Shard(1)])


def seconds(steps: list[Step], shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> float:
    return sum(step_seconds(step, shape, 4, mesh_shape, LINK) for step in steps)


def greedy(source: Placements, target: Placements) -> list[Step]:
    """Make everything whole, last axis first; then cut, first axis first."""
    steps: list[Step] = []
    state = source
    for axis in reversed(range(len(source))):
        state = go(steps, state, axis, Replicate())
    for axis, placement in enumerate(target):
        state = go(steps, state, axis, placement)
    return steps


def go(steps: list[Step], state: Placements, axis: int, placement: Placement) -> Placements:
    if state[axis] is placement:
        return state
    row = transition(state[axis], placement)
    assert row is not None
    reached = (*state[:axis], placement, *state[axis + 1 :])
    steps.append(Step(row.kind, axis, state, reached, row.communicates))
    return reached


@given(st.lists(placements, min_size=1, max_size=3))
def test_no_change_needs_no_step(source: list[Placement]) -> None:
    mesh_shape = (2,) * len(source)
    assert plan(tuple(source), tuple(source), (8, 4), 4, mesh_shape, LINK) is EMPTY


@given(
    st.lists(st.tuples(placements, whole_or_cut), min_size=1, max_size=3),
    st.tuples(st.integers(0, 9), st.integers(1, 1000)),
)
def test_no_plan_is_dearer_than_the_greedy_one(
    ends: list[tuple[Placement, Placement]], shape: tuple[int, int]
) -> None:
    source, target = tuple(a for a, _ in ends), tuple(b for _, b in ends)
    mesh_shape = (2, 3, 2)[: len(ends)]
    found = plan(source, target, shape, 4, mesh_shape, LINK)
    assert found.seconds <= seconds(greedy(source, target), shape, mesh_shape) + 1e-12
    assert found.seconds == pytest.approx(seconds(list(found.steps), shape, mesh_shape))


@given(st.lists(st.tuples(placements, whole_or_cut), min_size=1, max_size=3))
def test_steps_chain_from_source_to_target_and_change_one_axis_each(
    ends: list[tuple[Placement, Placement]],
) -> None:
    source, target = tuple(a for a, _ in ends), tuple(b for _, b in ends)
    state = source
    for step in plan(source, target, (8, 4), 4, (2,) * len(ends), LINK).steps:
        assert step.source == state
        changed = [axis for axis in range(len(state)) if state[axis] is not step.target[axis]]
        assert changed == [step.axis]
        cut = {sharded_dim(step.source[step.axis]), sharded_dim(step.target[step.axis])} - {None}
        later = {sharded_dim(placement) for placement in state[step.axis + 1 :]}
        assert not cut & later, "an axis changed its cut inside of another one"
        state = step.target
    assert state == target


def test_single_steps_are_those_of_the_table() -> None:
    expected = {
        ("R", "S(0)"): ("slice", 0),
        ("R", "P(sum)"): ("one_addend", 0),
        ("S(0)", "R"): ("all_gather", 1),
        ("S(0)", "S(1)"): ("all_to_all", 1),
        ("P(sum)", "R"): ("all_reduce", 1),
        ("P(sum)", "S(0)"): ("reduce_scatter", 1),
    }
    ends = (Replicate(), Shard(0), Shard(1), Partial())
    found = {}
    for source, target in itertools.permutations(ends, 2):
        steps = plan((source,), (target,), (8, 8), 4, (4,), LINK).steps
        if len(steps) == 1:
            found[str(source), str(target)] = (steps[0].kind, int(steps[0].communicates))
    assert expected.items() <= found.items()


def test_an_axis_of_one_rank_sends_nothing() -> None:
    assert not plan((Partial(),), (Shard(0),), (8,), 4, (1,), LINK).communicates


def test_reduce_scatter_is_taken_rather_than_all_reduce_and_slice() -> None:
    (step,) = plan((Partial(),), (Shard(0),), (1024,), 4, (4,), LINK).steps
    assert step.kind == "reduce_scatter"


def test_an_outer_cut_is_undone_after_the_inner_one() -> None:
    steps = plan((Shard(0), Shard(0)), (Replicate(), Shard(0)), (64,), 4, (2, 2), LINK).steps
    assert [(step.kind, step.axis) for step in steps] == [
        ("all_gather", 1),
        ("all_gather", 0),
        ("slice", 1),
    ]


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
    (step,) = plan((source,), (target,), (5, 3), 4, (4,), LINK).steps
    assert step.kind == kind
    assert step.payload_bytes((5, 3), 4, (4,), (0,)) == payload


def test_pieces_are_those_of_torch_chunk() -> None:
    assert piece_sizes(5, 4) == (2, 2, 1, 0)
    assert piece_sizes(8, 2, factor=2) == (4, 4)


def test_gradients_of_addends_are_whole() -> None:
    assert gradient_placement(Partial()) is Replicate()
    assert gradient_placement(Shard(1)) is Shard(1)
