"""A graph of work that is being changed.

Points are never taken away: a removed call keeps its points, which take no time then. Edges are
dropped, added, moved to other points, or get other lengths; work of a host is divided where
something new begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from commtrace.analyze.replay.graph import (
    HOST,
    LONG_AGO,
    WITHIN,
    Links,
    Points,
    WorkGraph,
)

_LONGEST_NS = 1 << 61


class Draft:
    """Edges and points of a graph, for changes in turn.

    Attributes:
        points: Points, to which `divide` adds.
        source, target, length, sort: Of each edge.
        is_inferred: True of an edge that the trace does not state.
        is_kept: False of a dropped edge.
        calls: Calls of the graph, whose points changes may move: `issue_point`, where the call is
            issued, and `use_point`, where its rank waits for it in place of its waits; -1 if it
            does not.
        removed: Rows of table `comm` of the calls that are removed.
    """

    def __init__(self, graph: WorkGraph) -> None:
        self._graph = graph
        self.points = graph.points
        links = graph.links
        self.source, self.target = links.source.copy(), links.target.copy()
        self.length, self.sort = links.length.copy(), links.sort.copy()
        self.is_inferred = links.is_inferred.copy()
        self.is_kept = np.ones(len(links), dtype=bool)
        self.calls = graph.calls.assign(issue_point=graph.calls["begin_point"], use_point=-1)
        self.removed = np.zeros(0, dtype="int64")

    def graph(self) -> WorkGraph:
        """Return the graph as it is now."""
        links = Links(self.source, self.target, self.length, self.sort, self.is_inferred).taken(
            self.is_kept
        )
        origin = np.full(len(self.points), LONG_AGO)
        origin[: len(self._graph.origin)] = self._graph.origin
        return replace(
            self._graph, points=self.points, links=links, origin=origin, calls=self.calls
        )

    def of_points(self, points: np.ndarray, end: str = "target") -> np.ndarray:
        """Return a mask of the kept edges that end, or begin, at some points."""
        chosen = np.zeros(len(self.points), dtype=bool)
        chosen[points] = True
        return chosen[getattr(self, end)] & self.is_kept

    def add(
        self, source: np.ndarray, target: np.ndarray, length: np.ndarray | int, sort: int
    ) -> None:
        """Add edges that follow from a change."""
        new = Links.of(source, target, length, sort)
        for name in ("source", "target", "length", "sort", "is_inferred"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(new, name)]))
        self.is_kept = np.concatenate([self.is_kept, np.ones(len(new), dtype=bool)])

    def new_points(self, like: np.ndarray, sort: int, at: np.ndarray) -> np.ndarray:
        """Add points of the ranks and rows of other points, on no chain, and return them."""
        first = len(self.points)
        self.points = self.points.joined(
            Points.of(sort, self.points.rank[like], self.points.row[like], at)
        )
        return np.arange(first, len(self.points))

    def divide(self, chain: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return points at which work of hosts is divided, in the same order.

        Args:
            chain: Chain of each point.
            at: Its recorded time. Within a call or a wait, it is the begin of that.
        """
        edges = np.flatnonzero(self.is_kept & (self.sort == HOST))
        begins = self.points.at[self.source[edges]]
        chains = self.points.chain[self.target[edges]]
        order = np.lexsort([edges, begins, chains])
        edges, begins, chains = edges[order], begins[order], chains[order]
        place = _last_before(chains, begins, chain, at)
        known = place >= 0
        found = np.full(len(at), -1)
        edge = edges[place[known]]
        end = self.points.at[self.target[edge]]
        within = np.clip(at[known], begins[place[known]], end)
        found[known] = self._split(edge, within)
        return found

    def _split(self, edge: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Divide edges at recorded times, which may be several for an edge."""
        if not len(edge):
            return np.zeros(0, dtype="int64")
        order = np.lexsort([at, edge])
        edge_of, at_of = edge[order], at[order]
        is_first = np.append(True, edge_of[1:] != edge_of[:-1])
        is_last = np.append(is_first[1:], True) if len(edge_of) else is_first
        begin = self.points.at[self.source[edge_of]]
        whole = self.points.at[self.target[edge_of]] - begin
        # In proportion, since an earlier change may have given the edge another length.
        scale = np.where(whole > 0, self.length[edge_of] / np.maximum(whole, 1), 0)
        until = np.rint((at_of - begin) * scale).astype("int64")
        new = self.new_points(self.source[edge_of], WITHIN, at_of)
        self.points = replace(
            self.points,
            chain=_with(self.points.chain, new, self.points.chain[self.target[edge_of]]),
        )
        since = np.append(0, until[:-1])
        since[is_first] = 0
        previous = np.append(-1, new[:-1])
        source = np.where(is_first, self.source[edge_of], previous)
        last = edge_of[is_last]
        self.add(source, new, until - since, HOST)
        self.source[last] = new[is_last]
        self.length[last] -= until[is_last]
        found = np.empty(len(edge), dtype="int64")
        found[order] = new
        return found

    def scale(self, edges: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Give edges the lengths that a function returns for those that they have."""
        lengths = np.rint(change(self.length[edges]))
        self.length[edges] = lengths.clip(0, _LONGEST_NS).astype("int64")


def distinct(*rows: np.ndarray) -> np.ndarray:
    """Return the distinct rows of tables, in order; faster than `numpy.unique` for many."""
    is_given = np.zeros(
        max((int(each.max(initial=-1)) for each in rows), default=-1) + 1, dtype=bool
    )
    for each in rows:
        is_given[each] = True
    return np.flatnonzero(is_given)


def _with(values: np.ndarray, at: np.ndarray, new: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[at] = new
    return values


def _last_before(
    chains: np.ndarray, begins: np.ndarray, chain: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return the place of the last edge of each chain that begins no later than `at`; -1 if none.

    Args:
        chains: Chain of each edge, in ascending order.
        begins: Begin of each edge, in ascending order within a chain.
        chain: Chain that is asked for.
        at: Time that is asked for.
    """
    first = np.searchsorted(chains, chain, side="left")
    last = np.searchsorted(chains, chain, side="right")
    # One order for both: chains apart by more than any time.
    width = int(max(begins.max(initial=0), at.max(initial=0))) + 2
    place = np.searchsorted(chains * width + begins, chain * width + at, side="right") - 1
    return np.where((place >= first) & (first < last), place, -1)
