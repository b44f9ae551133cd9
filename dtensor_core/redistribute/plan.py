"""The planner: finds the cheapest sequence of steps between two layouts of one tensor.

A state is a tuple of placements. An edge is a row of the transition table on one axis, or on axes
that one group joins; its weight comes from `cost`. The plan is the shortest path. Pure and cached:
integers, placements and a topology in, a frozen `Plan` out, the same on every rank.

Axes that shard the same dimension nest from the first to the last. An axis that has to shard inside
of later ones becomes a strided shard, with as many blocks as the later axes make: on axes (2, 4),
`[_StridedShard(0, split_factor=4), Shard(0)]` has the second axis outermost.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dtensor_core.placement import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
    sharded_dim,
)
from dtensor_core.redistribute.cost import Topology, step_seconds, topology_of
from dtensor_core.redistribute.transitions import SCALED, Step, closed, transition
from dtensor_core.spec import Spec

Placements = tuple[Placement, ...]
# Limit on the layouts of joined axes to search; beyond it only the destination is tried.
_LOOKED_AT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The steps from one layout to another, and their estimated time.

    Attributes:
        steps: The steps, in order.
        seconds: Their estimated time.
        target: The placements after the last step.
        num_flattened: That of the topology it was planned for; a newer one may have a better plan.
    """

    steps: tuple[Step, ...]
    seconds: float
    target: Placements = ()
    num_flattened: int = 0

    @property
    def communicates(self) -> bool:
        """True if any step communicates."""
        return any(step.communicates for step in self.steps)


EMPTY = Plan((), 0.0)


def plan_between(source: Spec, target: Spec) -> Plan:
    """Return the cheapest plan between two layouts of one tensor."""
    return EMPTY if source is target else plan_placements(source, target.placements)


def plan_placements(source: Spec, target: Placements) -> Plan:
    """Return the cheapest plan from a spec to other placements of the same tensor."""
    if source.placements == target:
        return EMPTY
    mesh = topology_of(source.mesh)
    return plan(source.placements, target, tuple(source.shape), source.dtype.itemsize, mesh)


@lru_cache(maxsize=16384)
def plan(
    source: Placements, target: Placements, shape: tuple[int, ...], itemsize: int, mesh: Topology
) -> Plan:
    """Return the cheapest plan from `source` to `target` for a tensor of global `shape`.

    Axes of a single rank need no steps.
    """
    start = tuple(
        before if ranks > 1 else after
        for before, after, ranks in zip(source, target, mesh.shape, strict=True)
    )
    if start == target:
        return EMPTY
    changing = tuple(axis for axis in range(len(start)) if start[axis] is not target[axis])
    steps, seconds = _cheapest(start, target, changing, shape, itemsize, mesh)
    return Plan(steps, seconds, target, mesh.num_flattened)


def _cheapest(
    source: Placements,
    target: Placements,
    changing: tuple[int, ...],
    shape: tuple[int, ...],
    itemsize: int,
    mesh: Topology,
) -> tuple[tuple[Step, ...], float]:
    """Find the shortest path by A*, bounded by the cost of the obvious plans.

    A path is abandoned once it would exceed the bound even if only one latency were left to pay.
    """
    known = [_at_once(source, target, changing, shape, mesh)]
    if known[0] is None or len(changing) > 1:
        known.append(_by_way_of_whole(source, target, shape, mesh))
    priced = [
        (sum(step_seconds(step, shape, itemsize, mesh) for step in steps), number, steps)
        for number, steps in enumerate(known)
        if steps is not None
    ]
    bound, _, steps = min(priced)
    if len(steps) == 1:
        return steps, bound
    latency = min(link.latency_s for link in (*mesh.links, *mesh.joined.values()))
    stops = _Stops(source, target, mesh)
    order = itertools.count()
    frontier = [(0.0, next(order), source)]
    best: dict[Placements, float] = {source: 0.0}
    arrived_by: dict[Placements, Step] = {}
    while frontier:
        _, _, state = heapq.heappop(frontier)
        seconds = best[state]
        if state == target:
            return _path(arrived_by, source, target), seconds
        for axes, reached in stops.after(state):
            left = latency if _must_send(reached, target) else 0.0
            least = seconds + (latency if _must_send(state, reached) else 0.0)
            if least + left >= bound or least >= best.get(reached, math.inf):
                continue
            step = _step(state, reached, axes, shape, mesh)
            if step is None:
                continue
            total = seconds + step_seconds(step, shape, itemsize, mesh)
            if total + left < bound and total < best.get(reached, math.inf):
                best[reached] = total
                arrived_by[reached] = step
                heapq.heappush(frontier, (total + left, next(order), reached))
    return steps, bound


def _at_once(
    source: Placements,
    target: Placements,
    changing: tuple[int, ...],
    shape: tuple[int, ...],
    mesh: Topology,
) -> tuple[Step, ...] | None:
    """Return the single step that does it all, on the only axis that changes or on joined axes."""
    if len(changing) == 1:
        step = _step(source, target, changing, shape, mesh)
        return None if step is None else (step,)
    for axes in mesh.joined:
        if set(changing) <= set(axes):
            step = _step(source, target, axes, shape, mesh)
            if step is not None:
                return (step,)
    return None


def _by_way_of_whole(
    source: Placements, target: Placements, shape: tuple[int, ...], mesh: Topology
) -> tuple[Step, ...]:
    """Replicate every axis from last to first, then shard from first to last: always possible."""
    live = [axis for axis, ranks in enumerate(mesh.shape) if ranks > 1]
    steps: list[Step] = []
    state = source
    for axis, end in (*((a, Replicate()) for a in reversed(live)), *((a, target[a]) for a in live)):
        kept = source[axis] is target[axis] and source[axis].is_partial()
        if state[axis] is not end and not kept:
            reached = (*state[:axis], end, *state[axis + 1 :])
            step = _step(state, reached, (axis,), shape, mesh)
            assert step is not None
            steps.append(step)
            state = reached
    return tuple(steps)


def _must_send(state: Placements, target: Placements) -> bool:
    """True if some axis can't reach its target without communication."""
    return any(
        here is not there
        and not here.is_replicate()
        and not (here.is_partial() and there.is_partial())
        for here, there in zip(state, target, strict=True)
    )


def _path(arrived_by: dict[Placements, Step], source: Placements, target: Placements):
    steps: list[Step] = []
    state = target
    while state != source:
        steps.append(arrived_by[state])
        state = steps[-1].source
    return tuple(reversed(steps))


def _step(
    state: Placements,
    reached: Placements,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    mesh: Topology,
) -> Step | None:
    """Return the single step between two states on some axes, or None."""
    rows = [_row(state[axis], reached[axis]) for axis in axes]
    kinds = {row for row in rows if row is not None}
    if len(kinds) != 1 or None in rows:
        return None
    kind, communicates = kinds.pop()
    if len(axes) > 1 and not (communicates and _reduce_together(state[axis] for axis in axes)):
        return None  # local steps are taken axis by axis
    if not closed(state, reached, axes, shape, mesh.shape):
        return None
    return Step(kind, axes, state, reached, communicates)


def _row(source: Placement, target: Placement) -> tuple[str, bool] | None:
    """Return the step kind and whether it communicates; joined axes may keep their shard."""
    if source is target:
        return ("all_to_all", True) if sharded_dim(source) is not None else None
    row = transition(source, target)
    return None if row is None else (row.kind, row.communicates)


def _reduce_together(placements: Iterable[Placement]) -> bool:
    """True unless the placements have partial values of reductions that do not commute."""
    reductions = {each.reduce_op for each in placements if isinstance(each, Partial)}
    return len(reductions) < 2 or reductions <= SCALED


class _Stops:
    """Successors of a layout on the way from a source to a target.

    On its own, an axis may stop at its two ends, at Replicate, and at the shardings in play.
    Shardings nested inside of later axes are tried if axes nest in an end, or may be joined.
    """

    def __init__(self, source: Placements, target: Placements, mesh: Topology) -> None:
        self.source, self.target, self.mesh = source, target, mesh
        cuts = [sharded_dim(placement) for placement in (*source, *target)]
        self.dims = tuple(dict.fromkeys(dim for dim in cuts if dim is not None))
        self.plain = tuple(
            dict.fromkeys(each for each in (*source, *target) if isinstance(each, Shard))
        )
        half = len(source)
        self.nested = tuple(
            dim
            for dim in self.dims
            if mesh.joined or max(cuts[:half].count(dim), cuts[half:].count(dim)) > 1
        )

    def after(self, state: Placements) -> Iterator[tuple[tuple[int, ...], Placements]]:
        """Yield the axes to step on and the layouts to step to."""
        for axis, placement in enumerate(state):
            if self.mesh.shape[axis] > 1:
                for other in self._alone(axis, state):
                    if other is not placement:
                        yield (axis,), (*state[:axis], other, *state[axis + 1 :])
        for axes in self.mesh.joined:
            for chosen in self._together(axes, state):
                reached = list(state)
                for axis, other in zip(axes, chosen, strict=True):
                    reached[axis] = other
                if tuple(reached) != state:
                    yield axes, tuple(reached)

    def _alone(self, axis: int, state: Placements) -> tuple[Placement, ...]:
        end = self.target[axis]
        stops = {end: None, Replicate(): None, **dict.fromkeys(self.plain)}
        for dim in self.nested:
            stops[_inside(dim, self._blocks(dim, axis, state))] = None
        if isinstance(end, Partial) and end is not state[axis]:
            reduced = end is self.source[axis]  # partial values that were reduced stay reduced
            # The neutral element of one reduction is an ordinary value to another that comes later.
            if reduced or not _reduce_together((*state[:axis], end, *state[axis + 1 :])):
                del stops[end]
        return tuple(stops)

    def _blocks(self, dim: int, axis: int, placements: Sequence[Placement]) -> int:
        """Return the number of pieces that later axes make of a dimension."""
        later = range(axis + 1, len(placements))
        sizes = (self.mesh.shape[each] for each in later if sharded_dim(placements[each]) == dim)
        return math.prod(sizes)

    def _together(self, axes: tuple[int, ...], state: Placements) -> Iterator[Placements]:
        """Yield the placements that joined axes may step to: all replicated, or all sharded."""
        now = [state[axis] for axis in axes]
        if any(placement.is_replicate() for placement in now):
            return
        yield tuple(Replicate() for _ in axes)
        ends = tuple(self.target[axis] for axis in axes)
        yield ends
        choices = [
            [
                (dim, inside)
                for dim in self.dims
                for inside in (False, True)[: 1 + (axis < axes[-1])]
            ]
            for axis in axes
        ]
        if math.prod(len(each) for each in choices) > _LOOKED_AT:
            return
        seen = {ends}
        for picked in itertools.product(*choices):
            cut = list(state)
            for axis, (dim, inside) in reversed(list(zip(axes, picked, strict=True))):
                cut[axis] = _inside(dim, self._blocks(dim, axis, cut) if inside else 1)
            chosen = tuple(cut[axis] for axis in axes)
            if chosen not in seen:
                seen.add(chosen)
                yield chosen


def _inside(dim: int, blocks: int) -> Placement:
    return Shard(dim) if blocks == 1 else _StridedShard(dim, split_factor=blocks)
