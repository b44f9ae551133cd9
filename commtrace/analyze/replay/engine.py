"""Longest paths through a graph of work: when each point is reached, and how late it could be.

A point is reached once all edges that lead to it have been passed:

    time[q]    = max over edges p → q of time[p] + length        (at least the point's own origin)
    latest[p]  = min over edges p → q of latest[q] - length      (at most the end of the run)

Times have the type of the lengths; integers are exact. Lists are walked by Python;
arrays of large graphs by the same functions, which numba then compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

MOST_EDGES_OF_PYTHON = 150_000
"""Number of edges from which compiling takes less time than it saves."""
NO_EDGE = -1


@dataclass(frozen=True, slots=True, eq=False)
class PointTimes:
    """Times of the points of a graph.

    Attributes:
        time: Time of each point, in ns.
        by_edge: The edge that was passed last before each point; -1 for an origin.
        order: The points in an order in which every edge leads forward.
        is_reached: False for the points of a cycle, and those behind it.
    """

    time: np.ndarray
    by_edge: np.ndarray
    order: np.ndarray
    is_reached: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingEdges:
    """Edges of a graph, in the order of their sources.

    Attributes:
        first: First edge of each source, and the number of edges at the end.
        target: Target of each edge.
        order: Place of each edge in the order in which they were given.
    """

    first: np.ndarray
    target: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, source: np.ndarray, target: np.ndarray, num_points: int) -> OutgoingEdges:
        """Return edges by their sources."""
        order = np.argsort(source, kind="stable")
        first = np.zeros(num_points + 1, dtype="int64")
        np.cumsum(np.bincount(source, minlength=num_points), out=first[1:])
        return cls(first, target[order].astype("int64", copy=False), order)


def reached(edges: OutgoingEdges, length: np.ndarray, origin: np.ndarray) -> PointTimes:
    """Return when each point is reached.

    Args:
        edges: The edges.
        length: Length of each edge in ns, in the order in which they were given.
        origin: Earliest time of each point, in ns.
    """
    num = len(origin)
    waits_for = np.bincount(edges.target, minlength=num)
    time, order = origin.astype(length.dtype), np.zeros(num, dtype="int64")
    by_edge = np.full(num, NO_EDGE, dtype="int64")
    given = (edges.first, edges.target, length[edges.order], waits_for)
    num_reached = _walk(_forward, given, (time, by_edge, order))
    is_reached = np.zeros(num, dtype=bool)
    is_reached[order[:num_reached]] = True
    known = by_edge >= 0
    by_edge[known] = edges.order[by_edge[known]]
    return PointTimes(time, by_edge, order[:num_reached], is_reached)


def latest(edges: OutgoingEdges, length: np.ndarray, times: PointTimes, end: int) -> np.ndarray:
    """Return the latest time of each point at which nothing ends later than `end`, in ns."""
    limit = np.full(len(times.time), end, dtype=length.dtype)
    _walk(_backward, (edges.first, edges.target, length[edges.order], times.order), (limit,))
    return limit


def _forward(
    first: Any, target: Any, length: Any, waits_for: Any, time: Any, by_edge: Any, order: Any
) -> Any:
    """Pass edges in an order in which each source comes after all edges to it."""
    end = 0
    for point in range(len(time)):
        if waits_for[point] == 0:
            order[end] = point
            end += 1
    place = 0
    while place < end:
        point = order[place]
        place += 1
        for edge in range(first[point], first[point + 1]):
            behind = target[edge]
            at = time[point] + length[edge]
            if at > time[behind] or (at == time[behind] and by_edge[behind] < 0):
                time[behind] = at
                by_edge[behind] = edge
            waits_for[behind] -= 1
            if waits_for[behind] == 0:
                order[end] = behind
                end += 1
    return end


def _backward(first: Any, target: Any, length: Any, order: Any, limit: Any) -> Any:
    """Pass edges backwards, from the last point to the first."""
    for place in range(len(order) - 1, -1, -1):
        point = order[place]
        for edge in range(first[point], first[point + 1]):
            at = limit[target[edge]] - length[edge]
            if at < limit[point]:
                limit[point] = at


def _walk(
    function: Callable[..., Any], given: Sequence[np.ndarray], filled: Sequence[np.ndarray]
) -> Any:
    """Call a function that fills arrays, compiled, or with lists in their place.

    Args:
        function: Takes all of them, and returns a number if anything.
        given: Arrays that it may use up; the second has an entry for each edge.
        filled: Arrays that it changes.
    """
    if len(given[1]) > MOST_EDGES_OF_PYTHON:
        return _compiled(function)(*given, *filled)
    lists = [each.tolist() for each in filled]
    found = function(*[each.tolist() for each in given], *lists)
    for array, values in zip(filled, lists, strict=True):
        array[:] = values
    return found


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    from numba import njit

    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder can be written that numba keeps compiled functions in
        return njit(nogil=True)(function)
