"""The graph of work of a run: points in time, and edges between them that take time.

    host of a rank  ──HOST──> CALL_BEGIN ──ISSUE──> CALL_END ──HOST──> WAIT_BEGIN ──WAIT──> WAIT_END
                                  │                                                            ▲
    its collective                └─ARRIVE─> MEETING ──TRANSFER──> COMPLETE ──────WAKE─────────┘
                                  ┌─ARRIVE────▲
    another rank    ──HOST──> CALL_BEGIN ...

    host               ──HOST──> LAUNCH ──HOST──> SYNC_BEGIN ──WAIT──> SYNC_END
                                   │                                      ▲
    stream             ──STREAM──> KERNEL_BEGIN ──KERNEL──> KERNEL_END ──WAKE

A call without a wait that blocks its rank has no point COMPLETE: its TRANSFER leads to CALL_END. A
point is reached when all edges to it have been passed (`engine`). Lengths are chosen so that a
replay of the unchanged graph gives the recorded times of all points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.replay.engine import OutgoingEdges, PointTimes, reached

POINTS = (
    CALL_BEGIN, CALL_END, COMPLETE, WAIT_BEGIN, WAIT_END, MEETING, STEP_BEGIN, STEP_END,
    LAUNCH, KERNEL_BEGIN, KERNEL_END, SYNC_BEGIN, SYNC_END, WITHIN,
) = tuple(range(14))  # fmt: skip
"""Sorts of points; WITHIN divides work of the host."""

EDGES = (
    HOST, ISSUE, ARRIVE, TRANSFER, QUEUE, WAIT, WAKE, LAUNCHING, STREAM, KERNEL, AFTER, MARK,
) = tuple(range(12))  # fmt: skip
"""Sorts of edges.

Work of the host; time inside of a call that only issues; a member's arrival; a transfer; a transfer
behind the previous one of its group; a wait that had nothing to wait for; the return from a wait
after what was waited for; the launch of a kernel; the gap behind the previous kernel of a stream;
a kernel; a dependency between streams or threads; the begin and the end of a step.
"""
LONG_AGO = -(1 << 62)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of a graph.

    Attributes:
        sort: One of `POINTS`.
        rank: Rank; -1 of a meeting.
        row: Row in table `comm`, `kernels`, `syncs` or `steps`; match of a meeting.
        at: Recorded time, in ns since the start of the run.
        chain: Number of the host's thread, or of the stream, whose points are in order; -1 of
            COMPLETE and MEETING, which are on none.
    """

    sort: np.ndarray
    rank: np.ndarray
    row: np.ndarray
    at: np.ndarray
    chain: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    def joined(self, *others: Points) -> Points:
        """Return these points, and then others."""
        every = (self, *others)
        return Points(
            *[np.concatenate([getattr(each, name) for each in every]) for name in self.__slots__]
        )

    @classmethod
    def of(
        cls, sort: np.ndarray | int, rank: np.ndarray, row: np.ndarray, at: np.ndarray,
        chain: np.ndarray | int = -1,
    ) -> Points:  # fmt: skip
        """Return points of these values, which may be numbers for all of them."""
        num = len(at)
        return cls(
            np.broadcast_to(np.asarray(sort, dtype="int8"), num),
            np.broadcast_to(np.asarray(rank, dtype="int32"), num),
            np.broadcast_to(np.asarray(row, dtype="int64"), num),
            np.asarray(at, dtype="int64"),
            np.broadcast_to(np.asarray(chain, dtype="int32"), num),
        )


def points_of_rows(sort: Any, row: Any, of: int, rows: pd.Index) -> np.ndarray:
    """Return the last point of a sort of each row of a table; -1 if it has none.

    Args:
        sort: Sort of each point.
        row: Row of each point.
        of: The sort.
        rows: The rows.
    """
    own = np.flatnonzero(np.asarray(sort) == of)
    last = pd.Series(own, index=np.asarray(row)[own])
    return last[~last.index.duplicated("last")].reindex(rows).fillna(-1).to_numpy("int64")


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Edges of a graph, in any order.

    Attributes:
        source: Point at which each edge begins.
        target: Point at which it ends.
        length: Its duration in ns; below 0 where clocks disagree.
        sort: One of `EDGES`.
        is_inferred: True if the trace does not state the dependency.
    """

    source: np.ndarray
    target: np.ndarray
    length: np.ndarray
    sort: np.ndarray
    is_inferred: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(
        cls,
        source: np.ndarray,
        target: np.ndarray,
        length: np.ndarray | int,
        sort: int | np.ndarray,
        is_inferred: bool | np.ndarray = False,
    ) -> Links:
        """Return edges of these values, where a single value counts for all of them."""
        num = len(source)
        return cls(
            np.asarray(source, dtype="int64"),
            np.asarray(target, dtype="int64"),
            np.broadcast_to(np.asarray(length, dtype="int64"), num),
            np.broadcast_to(np.asarray(sort, dtype="int8"), num),
            np.broadcast_to(np.asarray(is_inferred, dtype=bool), num),
        )

    def joined(self, *others: Links) -> Links:
        """Return these edges, and then others."""
        every = (self, *others)
        return Links(
            *[np.concatenate([getattr(each, name) for each in every]) for name in self.__slots__]
        )

    def taken(self, at: np.ndarray) -> Links:
        """Return some of the edges, by a mask or by their places."""
        return Links(*[getattr(self, name)[at] for name in self.__slots__])


@dataclass(frozen=True, slots=True, eq=False)
class WorkGraph:
    """Points and edges of a run.

    Attributes:
        points: The points.
        links: The edges.
        origin: Earliest time of each point; the recorded time of the first point of each chain.
        calls: A row per call with known times, by rows of table `comm`: `begin_point` and
            `end_point`, between which its transfer is; and facts about what it waits for (`joins`).
        num_unmatched: Number of calls whose dependencies on other ranks are unknown.
    """

    points: Points
    links: Links
    origin: np.ndarray
    calls: pd.DataFrame
    num_unmatched: int = 0

    def with_lengths(self, length: np.ndarray) -> WorkGraph:
        """Return the graph with other lengths of its edges."""
        return replace(self, links=replace(self.links, length=length))

    @property
    def edges(self) -> OutgoingEdges:
        """Edges in the order of their sources."""
        return OutgoingEdges.of(self.links.source, self.links.target, len(self.points))


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A graph, and when its points are reached.

    Attributes:
        graph: The graph.
        edges: Its edges in the order of their sources.
        times: Times of its points.
    """

    graph: WorkGraph
    edges: OutgoingEdges
    times: PointTimes

    @property
    def time(self) -> np.ndarray:
        """Time of each point, in ns since the start of the run."""
        return self.times.time


def replayed(graph: WorkGraph) -> Replay:
    """Return when the points of a graph are reached."""
    edges = graph.edges
    return Replay(graph, edges, reached(edges, graph.links.length, graph.origin))
