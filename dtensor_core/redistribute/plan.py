"""The planner: the cheapest sequence of steps between two layouts of one tensor.

A state is a tuple of placements, an edge is a row of the transition table on one axis, its weight
comes from `cost`; the plan is the shortest path. Pure and cached: integers and placements in, a
frozen `Plan` out, the same on every rank.

Law of nesting: axes that cut the same dimension nest from the first to the last, so an axis may
change its cut of a dimension only while no later axis cuts that dimension.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from dtensor_core.placement import Partial, Placement, Replicate, Shard, sharded_dim
from dtensor_core.redistribute.cost import Link, link_of, step_seconds
from dtensor_core.redistribute.transitions import Step, transition
from dtensor_core.spec import Spec

Placements = tuple[Placement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The steps from one layout to another, and their estimated time."""

    steps: tuple[Step, ...]
    seconds: float

    @property
    def communicates(self) -> bool:
        """True if any step sends anything."""
        return any(step.communicates for step in self.steps)


EMPTY = Plan((), 0.0)


def plan_between(source: Spec, target: Spec) -> Plan:
    """The cheapest plan between two layouts of one tensor."""
    return plan_placements(source, target.placements)


def plan_placements(source: Spec, target: Placements) -> Plan:
    """The cheapest plan from a spec to other placements of the same tensor."""
    if source.placements == target:
        return EMPTY
    return plan(
        source.placements,
        target,
        tuple(source.shape),
        source.dtype.itemsize,
        source.mesh_shape,
        link_of(source.mesh),
    )


@lru_cache(maxsize=16384)
def plan(
    source: Placements,
    target: Placements,
    shape: tuple[int, ...],
    itemsize: int,
    mesh_shape: tuple[int, ...],
    link: Link,
) -> Plan:
    """The cheapest plan from `source` to `target` for a tensor of global `shape`.

    Axes of size 1 communicate nothing: their steps are local relabelings.
    """
    if source == target:
        return EMPTY
    order = itertools.count()
    frontier = [(0.0, next(order), source)]
    best: dict[Placements, float] = {source: 0.0}
    arrived_by: dict[Placements, Step] = {}
    while frontier:
        seconds, _, state = heapq.heappop(frontier)
        if state == target:
            return Plan(_path(arrived_by, source, target), seconds)
        if seconds > best[state]:
            continue
        for step in _steps_from(state, source, target, mesh_shape):
            reached = seconds + step_seconds(step, shape, itemsize, mesh_shape, link)
            if reached < best.get(step.target, float("inf")):
                best[step.target] = reached
                arrived_by[step.target] = step
                heapq.heappush(frontier, (reached, next(order), step.target))
    raise AssertionError(f"no plan from {source} to {target}")  # R is reachable from anywhere


def _path(arrived_by: dict[Placements, Step], source: Placements, target: Placements):
    steps: list[Step] = []
    state = target
    while state != source:
        steps.append(arrived_by[state])
        state = steps[-1].source
    return tuple(reversed(steps))


def _steps_from(
    state: Placements, source: Placements, target: Placements, mesh_shape: tuple[int, ...]
) -> Iterator[Step]:
    """Every step out of a state towards a placement that this tensor may pass through."""
    for axis, placement in enumerate(state):
        for other in _stops(axis, source, target):
            if other is placement or not _is_innermost(state, axis, placement, other):
                continue
            row = transition(placement, other)
            if row is None:
                continue
            reached = (*state[:axis], other, *state[axis + 1 :])
            communicates = row.communicates and mesh_shape[axis] > 1
            yield Step(row.kind, axis, state, reached, communicates)


def _stops(axis: int, source: Placements, target: Placements) -> tuple[Placement, ...]:
    """Placements worth passing through on an axis: its own two ends, R, and plain cuts in play."""
    stops = {target[axis]: None, Replicate(): None}
    for placement in (*source, *target):
        if isinstance(placement, Shard):
            stops[placement] = None
    if isinstance(target[axis], Partial) and target[axis] is not source[axis]:
        return tuple(stops)
    return tuple(stop for stop in stops if not isinstance(stop, Partial))


def _is_innermost(state: Placements, axis: int, leaves: Placement, joins: Placement) -> bool:
    """No later axis cuts a dimension whose cut by `axis` would change."""
    touched = {sharded_dim(leaves), sharded_dim(joins)} - {None}
    return not any(sharded_dim(later) in touched for later in state[axis + 1 :])
