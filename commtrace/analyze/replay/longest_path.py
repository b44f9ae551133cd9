"""The longest path through a replayed graph, and how much longer each edge could take.

The path ends at the last point of the run. Each of its edges is the one that its target was last
reached by, so their lengths add up to the time from its first point to the end. Of several such
edges, the path takes an edge that stays on its rank, so that it hops only where it must:

    longest_path(replay)      p → q → ... → last point       time[q] == time[p] + length
    slack_of_edges(replay)    latest[q] - time[p] - length   for each edge p → q

An edge that takes longer by its slack changes the end of nothing that ends last; by more than
that, the run ends later by the rest.
"""

from __future__ import annotations

import numpy as np

from commtrace.analyze.replay.engine import latest
from commtrace.analyze.replay.graph import Replay

NO_POINT = -1
UNKNOWN_SLACK = -1
"""Slack of an edge that is never passed, since it leads to or from a cycle."""


def last_point(replay: Replay) -> int:
    """Return the point at which a run ends; -1 if it has none.

    If several end last, it is a point of the lowest rank.
    """
    times, points = replay.times, replay.graph.points
    if not times.is_reached.any():
        return NO_POINT
    end = times.time[times.is_reached].max()
    last = np.flatnonzero(times.is_reached & (times.time == end))
    order = np.lexsort([getattr(points, name)[last] for name in ("row", "sort", "rank")])
    return int(last[order[0]])


def longest_path(replay: Replay) -> np.ndarray:
    """Return the edges of the path that ends last, the first of them first."""
    point = last_point(replay)
    if point == NO_POINT:
        return np.zeros(0, dtype="int64")
    points, links = replay.graph.points, replay.graph.links
    edges, first = _binding_edges(replay)
    rank_of, source = points.rank.tolist(), links.source.tolist()
    rank, found = rank_of[point], []
    while first[point] < first[point + 1]:
        choices = edges[first[point] : first[point + 1]]
        own = [edge for edge in choices if rank_of[source[edge]] == rank]
        found.append((own or choices)[0])
        point = source[found[-1]]
        # A meeting has no rank: the path stays on the rank that it comes back from.
        rank = rank_of[point] if rank_of[point] >= 0 else rank
    return np.array(found[::-1], dtype="int64")


def _binding_edges(replay: Replay) -> tuple[list[int], list[int]]:
    """Return the edges that each point is last reached by, by points, and the first of each point.

    Edges of a point are in an order that does not depend on how the graph was put together.
    """
    points, links, times = replay.graph.points, replay.graph.links, replay.times
    is_passed = times.is_reached[links.source] & times.is_reached[links.target]
    at = times.time[links.source] + links.length
    binding = np.flatnonzero(is_passed & (at == times.time[links.target]))
    source, target = links.source[binding], links.target[binding]
    keys = [getattr(points, name)[source] for name in ("row", "sort", "rank")]
    order = np.lexsort([*keys, links.sort[binding], target])
    first = np.searchsorted(target[order], np.arange(len(points) + 1))
    return binding[order].tolist(), first.tolist()


def slack_of_edges(replay: Replay) -> np.ndarray:
    """Return how much longer each edge could take before the run ends later, in ns."""
    links, times = replay.graph.links, replay.times
    if last_point(replay) == NO_POINT:
        return np.full(len(links), UNKNOWN_SLACK)
    end = int(times.time[times.is_reached].max())
    is_passed = times.is_reached[links.source] & times.is_reached[links.target]
    # Points that are never reached do not delay the end.
    length = np.where(is_passed, links.length, np.minimum(links.length, 0))
    until = latest(replay.edges, length, times, end)
    slack = until[links.target] - links.length - times.time[links.source]
    return np.where(is_passed, slack, UNKNOWN_SLACK)
