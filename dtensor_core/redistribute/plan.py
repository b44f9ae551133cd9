"""The planner: finds the cheapest sequence of steps between two layouts of a tensor.

A state is a tuple of placements. An edge is a row of the transition table on one axis, or on axes
that a group joins; its weight comes from `cost`. The plan is the shortest path. Pure and cached:
integers, placements and a topology in, a frozen `Plan` out, the same on every rank.

All shapes of a class share the prices of their steps (`cost.priced_step`): a dimension that every
axis can shard evenly counts as the smallest such size, and the rest of it as a scale.

Axes that shard the same dimension nest from the first to the last. An axis that has to shard inside
of later axes becomes a strided shard, with as many blocks as they make: on axes (2, 4),
`[_StridedShard(0, split_factor=4), Shard(0)]` has the second axis outermost.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dtensor_core.placement import Partial, Placement, Replicate, Shard, shard_in_blocks
from dtensor_core.redistribute.cost import Topology, priced_step, topology_of
from dtensor_core.redistribute.transitions import Step, commute
from dtensor_core.spec import Spec

Placements = tuple[Placement, ...]
# Limit on the layouts of joined axes to search; beyond it only the destination is tried.
_LOOKED_AT = 64
_REPLICATE = Replicate()


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The steps from one layout to another, and their estimated time.

    Attributes:
        steps: The steps, in order.
        seconds: Their estimated time.
        target: The placements after the last step.
        num_flattened: `num_flattened` of its topology; a newer topology may have a better plan.
        communicates: True if any step communicates.
    """

    steps: tuple[Step, ...]
    seconds: float
    target: Placements = ()
    num_flattened: int = 0
    communicates: bool = False


EMPTY = Plan((), 0.0)


def plan_between(source: Spec, target: Spec) -> Plan:
    """Return the cheapest plan between two layouts of a tensor."""
    return EMPTY if source is target else plan_placements(source, target.placements)


def plan_placements(source: Spec, target: Placements) -> Plan:
    """Return the cheapest plan from a spec to other placements of the same tensor."""
    if source.placements == target:
        return EMPTY
    mesh = topology_of(source.mesh)
    return plan(source.placements, target, source.shape, source.dtype.itemsize, mesh)


@lru_cache(maxsize=16384)
def plan(
    source: Placements, target: Placements, shape: tuple[int, ...], itemsize: int, mesh: Topology
) -> Plan:
    """Return the cheapest plan from `source` to `target` for a tensor of global `shape`.

    Axes of a single rank need no steps.
    """
    search = _search(source, target, mesh)
    if search is None:
        return EMPTY
    unit, scale = search.shape_class(shape)
    steps, seconds = search.cheapest(unit, scale * itemsize)
    communicates = any([step.communicates for step in steps])
    return Plan(steps, seconds, target, mesh.num_flattened, communicates)


@lru_cache(maxsize=16384)
def _search(source: Placements, target: Placements, mesh: Topology) -> _Search | None:
    """Return the search between two layouts, or None if they differ on axes of size 1 only."""
    ends = zip(source, target, mesh.shape, strict=True)
    start = tuple([before if ranks > 1 else after for before, after, ranks in ends])
    return None if start == target else _Search(start, target, mesh)


class _Search:
    """The search for the cheapest path between two layouts, for tensors of any shape.

    On its own, an axis may stop at its two ends, at Replicate, and at the shardings in play.
    Shardings nested inside of later axes are tried if axes nest in an end, or may be joined.
    """

    def __init__(self, source: Placements, target: Placements, mesh: Topology) -> None:
        self.source, self.target, self.mesh = source, target, mesh
        self.live = [axis for axis, ranks in enumerate(mesh.shape) if ranks > 1]
        self.changing = tuple([axis for axis in self.live if source[axis] is not target[axis]])
        sharded = [placement.sharded_dim for placement in (*source, *target)]
        self.dims = tuple(dict.fromkeys([dim for dim in sharded if dim is not None]))
        self.plain = [each for each in (*source, *target) if isinstance(each, Shard)]
        half = len(source)
        self.nested = [
            dim
            for dim in self.dims
            if mesh.joined or max(sharded[:half].count(dim), sharded[half:].count(dim)) > 1
        ]
        blocks = [placement.num_blocks for placement in (*source, *target)]
        self.divisor = math.prod((*mesh.shape, *blocks))
        self.latency = min([link.latency_s for link in (*mesh.links, *mesh.joined.values())])
        several = mesh.joined if len(self.changing) > 1 else ()
        self.joining = [axes for axes in several if set(self.changing) <= set(axes)]
        self._known_edges: dict[Placements, list[_Edge]] = {}

    def shape_class(self, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the smallest shape whose steps cost the same but for a scale, and that scale."""
        unit, scale = [1] * len(shape), 1
        for dim, size in enumerate(shape):
            if dim in self.dims:
                is_even = size > 0 and size % self.divisor == 0
                unit[dim] = self.divisor if is_even else size
                size = size // self.divisor if is_even else 1
            scale *= size
        return tuple(unit), scale

    def cheapest(self, unit: tuple[int, ...], scale: int) -> tuple[tuple[Step, ...], float]:
        """Find the shortest path by A*, bounded by the cost of the obvious plans.

        A path is abandoned once it would exceed the bound even with a single latency left to pay.
        """
        if len(self.changing) == 1:
            at_once = priced_step(self.source, self.target, self.changing, unit, self.mesh)
            if at_once is not None:
                return (at_once.step,), at_once.seconds(scale)
        bound, steps = self._obvious(unit, scale)
        if len(steps) == 1:
            return steps, bound
        order = itertools.count()
        # The counter breaks ties in the heap, since placements have no order.
        frontier = [(0.0, next(order), self.source)]
        best: dict[Placements, float] = {self.source: 0.0}
        arrived_by: dict[Placements, Step] = {}
        while frontier:
            _, _, state = heapq.heappop(frontier)
            seconds = best[state]
            if state == self.target:
                return self._path(arrived_by), seconds
            for edge in self._edges(state):
                least, reached = seconds + edge.least_s, edge.reached
                if least + edge.left_s >= bound or least >= best.get(reached, math.inf):
                    continue
                found = priced_step(state, reached, edge.axes, unit, self.mesh)
                if found is None:
                    continue
                total = seconds + found.seconds(scale)
                if total + edge.left_s < bound and total < best.get(reached, math.inf):
                    best[reached] = total
                    arrived_by[reached] = found.step
                    heapq.heappush(frontier, (total + edge.left_s, next(order), reached))
        return steps, bound

    def _obvious(self, unit: tuple[int, ...], scale: int) -> tuple[float, tuple[Step, ...]]:
        """Return the cheaper of the single step that does it all and the way through Replicate."""
        joined = (
            priced_step(self.source, self.target, axes, unit, self.mesh) for axes in self.joining
        )
        known = [[step] for step in joined if step is not None][:1]
        way = [priced_step(*edge, unit, self.mesh) for edge in self._via_replicate()]
        known.append([step for step in way if step is not None])
        costs = [sum([step.seconds(scale) for step in steps]) for steps in known]
        number = costs.index(min(costs))
        return costs[number], tuple([each.step for each in known[number]])

    def _via_replicate(self) -> list[tuple[Placements, Placements, tuple[int, ...]]]:
        """Replicate every axis from last to first, then shard from first to last: always possible.

        Returns the layouts before and after each step, and its axis.
        """
        steps: list[tuple[Placements, Placements, tuple[int, ...]]] = []
        state = self.source
        ends = [(axis, _REPLICATE) for axis in reversed(self.live)]
        for axis, end in (*ends, *[(axis, self.target[axis]) for axis in self.live]):
            # Partial values that the target keeps are left alone: reducing them only costs time.
            kept = self.source[axis] is self.target[axis] and self.source[axis].letter == "P"
            if state[axis] is not end and not kept:
                reached = (*state[:axis], end, *state[axis + 1 :])
                steps.append((state, reached, (axis,)))
                state = reached
        return steps

    def _path(self, arrived_by: dict[Placements, Step]) -> tuple[Step, ...]:
        steps: list[Step] = []
        state = self.target
        while state != self.source:
            steps.append(arrived_by[state])
            state = steps[-1].source
        return tuple(reversed(steps))

    def _edges(self, state: Placements) -> list[_Edge]:
        """Return the edges that may leave a layout."""
        if state not in self._known_edges:
            self._known_edges[state] = [
                _Edge(
                    axes,
                    reached,
                    self.latency if _must_send(state, reached) else 0.0,
                    self.latency if _must_send(reached, self.target) else 0.0,
                )
                for axes, reached in self._after(state)
            ]
        return self._known_edges[state]

    def _after(self, state: Placements) -> Iterator[tuple[tuple[int, ...], Placements]]:
        """Yield the axes to step on and the layouts to step to."""
        for axis in self.live:
            for other in self._alone(axis, state):
                if other is not state[axis]:
                    yield (axis,), (*state[:axis], other, *state[axis + 1 :])
        for axes in self.mesh.joined:
            for chosen in self._together(axes, state):
                reached = list(state)
                for axis, other in zip(axes, chosen, strict=True):
                    reached[axis] = other
                if tuple(reached) != state:
                    yield axes, tuple(reached)

    def _alone(self, axis: int, state: Placements) -> list[Placement]:
        end = self.target[axis]
        # A dict, not a set: placements hash by address, so the order of a set, and with it the
        # choice among equal plans, would differ between ranks.
        stops = dict.fromkeys((end, _REPLICATE, *self.plain))
        for dim in self.nested:
            stops[shard_in_blocks(dim, self._blocks(dim, axis, state))] = None
        if isinstance(end, Partial) and end is not state[axis]:
            reduced = end is self.source[axis]  # partial values that were reduced stay reduced
            # The neutral element of one reduction is an ordinary value to another that comes later.
            if reduced or not commute((*state[:axis], end, *state[axis + 1 :])):
                del stops[end]
        return list(stops)

    def _blocks(self, dim: int, axis: int, placements: Sequence[Placement]) -> int:
        """Return the number of pieces that later axes make of a dimension."""
        later = range(axis + 1, len(placements))
        return math.prod(
            [self.mesh.shape[each] for each in later if placements[each].sharded_dim == dim]
        )

    def _together(self, axes: tuple[int, ...], state: Placements) -> Iterator[Placements]:
        """Yield the placements that joined axes may step to: all replicated, or all sharded."""
        if any([state[axis] is _REPLICATE for axis in axes]):
            return
        yield (_REPLICATE,) * len(axes)
        ends = tuple([self.target[axis] for axis in axes])
        yield ends
        choices = [
            [
                (dim, inside)
                for dim in self.dims
                for inside in (False, True)[: 1 + (axis < axes[-1])]
            ]
            for axis in axes
        ]
        if math.prod([len(each) for each in choices]) > _LOOKED_AT:
            return
        seen = {ends}
        for picked in itertools.product(*choices):
            resharded = list(state)
            for axis, (dim, inside) in reversed(list(zip(axes, picked, strict=True))):
                resharded[axis] = shard_in_blocks(
                    dim, self._blocks(dim, axis, resharded) if inside else 1
                )
            chosen = tuple([resharded[axis] for axis in axes])
            if chosen not in seen:
                seen.add(chosen)
                yield chosen


@dataclass(frozen=True, slots=True)
class _Edge:
    """A change of layout that may be a step.

    Attributes:
        axes: The axes to step on.
        reached: The layout to step to.
        least_s: A lower bound of its time.
        left_s: A lower bound of the time from there to the target.
    """

    axes: tuple[int, ...]
    reached: Placements
    least_s: float
    left_s: float


def _must_send(state: Placements, target: Placements) -> bool:
    """True if some axis can't reach its target without communication."""
    return any(
        [
            here is not there
            and here is not _REPLICATE
            and not (here.letter == "P" and there.letter == "P")
            for here, there in zip(state, target, strict=True)
        ]
    )
