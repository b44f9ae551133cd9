"""Nodes of a rank's work and their dependencies, for formats that state dependencies by node.

The graph of work of a run (`commtrace.analyze.replay`) has points in time, and edges that take
time. Here, the edges of work become nodes, and each node lists the nodes that end before it begins:

    host ──────> issue ──────> host ─────────────> wait ──────> host     after: program order
                   │                                 ▲
                   └───────> all_reduce ─────────────┘                   needs: everything else

A node never lists a node behind it, so nodes are in an order in which they can be run.
Dependencies on other ranks are not listed: a collective implies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from commtrace.analyze.replay.engine import OutgoingEdges, reached
from commtrace.analyze.replay.graph import (
    HOST,
    ISSUE,
    KERNEL,
    QUEUE,
    STREAM,
    SYNC_BEGIN,
    SYNC_END,
    TRANSFER,
    WAIT,
    WAIT_BEGIN,
    WAIT_END,
    WorkGraph,
)
from commtrace.analyze.run.frame import Frames
from commtrace.exporters.chakra_operators import HostOperators, tables_of_rank

HOST_WORK, ISSUED, WAITED, OPERATOR, CALL, DEVICE, SYNC = (
    "host", "issue", "wait", "operator", "call", "kernel", "sync",
)  # fmt: skip
"""Sorts of nodes: work of the host, time inside of an asynchronous call, a wait for a call, an
operator, a call, a kernel, and a call of the device's runtime that may wait.
"""

_ALONG = (HOST, ISSUE, WAIT, STREAM, KERNEL)
"""Edges along a thread or a stream."""
_BEGINS = {WAIT_END: WAIT_BEGIN, SYNC_END: SYNC_BEGIN}
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class WorkNode:
    """A node.

    Attributes:
        sort: Its sort.
        row: Place in the table of its sort among the rows of its rank; -1 if it is in none.
        begin: Its begin, in ns since the start of the run; -1 if unknown.
        duration: Time that the work takes, without waits for other ranks; -1 if unknown.
        after: Numbers of the nodes before it on its thread or stream.
        needs: Numbers of other nodes that must have ended.
        num_inferred: Number of dependencies that the trace does not state.
        is_rest: True if an earlier node has the begin of the same work.
    """

    sort: str
    row: int
    begin: int
    duration: int
    after: tuple[int, ...]
    needs: tuple[int, ...]
    num_inferred: int = 0
    is_rest: bool = False


Ends = dict[int, tuple[bool, bool]]
"""Nodes that must have ended at a point: in program order, and inferred."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalGraph:
    """Edges within ranks, as lists.

    Attributes:
        order: Points of each rank, in an order in which every edge leads forward.
        incoming: Source, sort, length and inference of the edges to each point.
        begins: Call, by its row in table `comm`, that begins at a point.
        ends: Call that ends there.
        queued: Call of the same rank behind whose transfer the transfer of a call is.
        transfer: Time of the transfer of each call, if known.
    """

    graph: WorkGraph
    order: Mapping[int, list[int]]
    incoming: list[list[tuple[int, int, int, bool]]]
    begins: dict[int, int]
    ends: dict[int, int]
    queued: dict[int, int]
    transfer: dict[int, int]

    @classmethod
    def of(cls, graph: WorkGraph) -> LocalGraph:
        """Return the edges of a graph within each rank."""
        points, links, calls = graph.points, graph.links, graph.calls
        rows = [int(row) for row in calls.index]
        begins = dict(zip(calls["begin_point"].tolist(), rows, strict=True))
        ends = dict(zip(calls["end_point"].tolist(), rows, strict=True))
        rank = points.rank
        is_local = (rank[links.source] == rank[links.target]) & (rank[links.source] >= 0)
        is_queue = links.sort == QUEUE
        queued = {
            ends[target]: ends[source]
            for source, target in _pairs(links.source[is_queue], links.target[is_queue])
        }
        is_transfer = links.sort == TRANSFER
        transfer = {
            ends[target]: max(length, 0)
            for target, length in _pairs(links.target[is_transfer], links.length[is_transfer])
        }
        kept = is_local & ~is_queue & ~is_transfer
        incoming: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(len(points))]
        for source, target, sort, length, inferred in zip(
            *[
                getattr(links, name)[kept].tolist()
                for name in ("source", "target", "sort", "length", "is_inferred")
            ],
            strict=True,
        ):
            incoming[target].append((source, sort, length, inferred))
        source = np.concatenate([links.source[kept], calls["begin_point"].to_numpy("int64")])
        target = np.concatenate([links.target[kept], calls["end_point"].to_numpy("int64")])
        order = _order(source, target, graph)
        by_rank = {
            int(each): order[rank[order] == each].tolist() for each in np.unique(rank) if each >= 0
        }
        return cls(graph, by_rank, incoming, begins, ends, queued, transfer)


def _pairs(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[int, int]]:
    yield from zip(first.tolist(), second.tolist(), strict=True)


def _order(source: np.ndarray, target: np.ndarray, graph: WorkGraph) -> np.ndarray:
    """Return the points in an order in which edges lead forward; by time if some are a cycle."""
    num = len(graph.points)
    nothing = np.zeros(num, dtype="int64")
    times = reached(
        OutgoingEdges.of(source, target, num), np.zeros(len(source), dtype="int64"), nothing
    )
    if len(times.order) == num:
        return times.order
    return np.lexsort([np.arange(num), graph.points.at])


def ranks_of(run: Frames) -> list[int]:
    """Return the ranks that are known, and those that made calls."""
    return sorted({*run.ranks["rank"].tolist(), *run.comm["rank"].tolist()})


def nodes_of_ranks(run: Frames, graph: WorkGraph) -> Iterator[tuple[int, list[WorkNode]]]:
    """Yield each rank and its nodes, which are numbered by their places."""
    local = LocalGraph.of(graph)
    first = {
        name: getattr(run, name).groupby("rank").indices
        for name in ("comm", "ops", "kernels", "syncs", "later_waits")
    }
    for rank in ranks_of(run):
        places = {name: of.get(rank, np.zeros(0, dtype="int64")) for name, of in first.items()}
        yield rank, RankWork(run, local, rank, places).nodes()


class RankWork:
    """Builds the nodes of a rank: passes its points in order, and keeps what has ended at each."""

    def __init__(
        self, run: Frames, local: LocalGraph, rank: int, places: Mapping[str, np.ndarray]
    ) -> None:
        self._local, self._points = local, local.graph.points
        self._at = self._points.at
        self._tables = tables_of_rank(run, places)
        self._order = local.order.get(rank, [])
        self._place = {
            name: {int(row): place for place, row in enumerate(getattr(run, name).index[of])}
            for name, of in places.items()
        }
        self._operators = HostOperators(run, self._tables, self._order, self._points)
        self._ended: dict[int, Ends] = {}
        self._nodes: list[WorkNode] = []
        self._node_of_call: dict[int, int] = {}
        self._node_of_row: dict[int, int] = {}
        comm = self._tables["comm"]
        timed = {local.begins[point] for point in self._order if point in local.begins}
        of_rows = self._place["comm"]
        untimed = [place for row, place in of_rows.items() if row not in timed]
        self._untimed = sorted(untimed, key=lambda place: comm["id"][place], reverse=True)
        self._last_call: int | None = None
        self._last_untimed: int | None = None

    def nodes(self) -> list[WorkNode]:
        """Return the nodes."""
        last: dict[int, int] = {}
        for point in self._order:
            self._ended[point] = self._pass(point)
            last[int(self._points.chain[point])] = point
        for chain, point in last.items():
            rest = self._operators.end_of(chain)
            if chain >= 0 and rest > self._at[point]:
                self._host(chain, int(self._at[point]), rest, self._ended[point])
        self._add_untimed(None)
        return self._nodes

    def _pass(self, point: int) -> Ends:
        """Return the nodes that have ended at a point, whose own nodes are added."""
        local, sort = self._local, int(self._points.sort[point])
        row = local.ends.get(point)
        if row is not None and row in self._node_of_row:
            return {self._node_of_row[row]: (True, False)}
        ended: Ends = {}
        inside, since = 0, int(self._at[point])
        for source, link, length, inferred in local.incoming[point]:
            passed = self._ended.get(source, {})
            if link in _ALONG:
                passed = self._along(source, point, link, length, passed)
                if link == WAIT:
                    inside, since = length, int(self._at[source])
            else:
                passed = {node: (False, flags[1] or inferred) for node, flags in passed.items()}
            _join(ended, passed)
        chain = int(self._points.chain[point])
        if not local.incoming[point] and self._operators.is_host(chain):
            # Before its first point, a thread has worked since the run began.
            ended = self._host(chain, 0, int(self._at[point]), ended)
        if sort in _BEGINS:
            ended = self._wait(point, sort, since, inside, ended)
        row = local.begins.get(point)
        if row is not None:
            self._call(row, point, ended)
        return ended

    def _along(self, source: int, point: int, link: int, length: int, ended: Ends) -> Ends:
        """Add the nodes of an edge along a thread or a stream."""
        begin, end = int(self._at[source]), int(self._at[point])
        row = int(self._points.row[point])
        if link == HOST:
            return self._host(int(self._points.chain[point]), begin, end, ended)
        if link == ISSUE and end > begin:
            return self._alone(ISSUED, self._place["comm"][row], begin, length, ended)
        if link == KERNEL:
            place = self._place["kernels"][row]
            call = self._tables["kernels"]["call_id"][place]
            if call in self._node_of_call:
                return {self._node_of_call[call]: (True, False)}
            ended = self._alone(DEVICE, place, begin, end - begin, ended)
            self._operators.ran(self._tables["kernels"]["op_id"][place], len(self._nodes) - 1)
        return ended

    def _host(self, chain: int, begin: int, end: int, ended: Ends) -> Ends:
        """Add the host's work between two instants, divided into the operators in between."""
        if end <= begin:
            return ended
        for place, since, until, is_rest in self._operators.pieces(chain, begin, end):
            if place == _UNKNOWN:
                ended = self._alone(HOST_WORK, _UNKNOWN, since, until - since, ended)
                continue
            needs = () if is_rest else self._operators.needs(place, self._node_of_call)
            ended = self._alone(OPERATOR, place, since, until - since, ended, needs, is_rest)
            self._operators.ran(self._tables["ops"]["id"][place], len(self._nodes) - 1)
        return ended

    def _wait(self, point: int, sort: int, since: int, length: int, ended: Ends) -> Ends:
        """Add a wait, which takes no time but what it took in spite of nothing to wait for."""
        table, kind = ("syncs", SYNC) if sort == SYNC_END else ("comm", WAITED)
        place = self._place[table].get(int(self._points.row[point]), _UNKNOWN)
        return self._alone(kind, place, since, length, ended)

    def _call(self, row: int, point: int, ended: Ends) -> None:
        place = self._place["comm"][row]
        self._add_untimed(self._tables["comm"]["id"][place])
        ended = dict(ended)
        before = self._node_of_row.get(self._local.queued.get(row, _UNKNOWN))
        _join(ended, {before: (False, False)} if before is not None else {})
        if self._last_untimed is not None:
            _join(ended, {self._last_untimed: (True, True)})
            self._last_untimed = None
        self._add_call(place, int(self._at[point]), self._local.transfer.get(row, _UNKNOWN), ended)
        self._node_of_row[row] = len(self._nodes) - 1

    def _add_untimed(self, before: int | None) -> None:
        """Add the calls of unknown time whose numbers are lower, each after the call before it."""
        ids = self._tables["comm"]["id"]
        while self._untimed and (before is None or ids[self._untimed[-1]] < before):
            place = self._untimed.pop()
            ended: Ends = {self._last_call: (True, True)} if self._last_call is not None else {}
            self._add_call(place, _UNKNOWN, _UNKNOWN, ended)
            self._last_untimed = self._last_call

    def _add_call(self, place: int, begin: int, duration: int, ended: Ends) -> None:
        comm = self._tables["comm"]
        needs = self._operators.data_of(place, self._node_of_call)
        self._alone(CALL, place, begin, duration, ended, needs)
        number = len(self._nodes) - 1
        self._node_of_call[comm["id"][place]] = number
        self._operators.ran(comm["op_id"][place], number)
        self._last_call = number

    def _alone(
        self, sort: str, row: int, begin: int, duration: int, ended: Ends,
        stated: tuple[int, ...] = (), is_rest: bool = False,
    ) -> Ends:  # fmt: skip
        """Add a node, and return it as all that has ended behind it.

        Args:
            sort: Its sort.
            row: Its row.
            begin: Its begin.
            duration: Its duration.
            ended: Nodes that it is behind.
            stated: Further nodes whose results it uses.
            is_rest: The begin of its work has another node.
        """
        after = tuple(sorted(node for node, (in_order, _) in ended.items() if in_order))
        others = {node for node, (in_order, _) in ended.items() if not in_order}
        inferred = sum(
            is_inferred for node, (_, is_inferred) in ended.items() if node not in stated
        )
        needs = tuple(sorted((others | set(stated)).difference(after)))
        self._nodes.append(WorkNode(sort, row, begin, duration, after, needs, inferred, is_rest))
        return {len(self._nodes) - 1: (True, False)}


def _join(ended: Ends, others: Ends) -> None:
    """Add nodes; a dependency is inferred only if nothing states it."""
    for node, (in_order, inferred) in others.items():
        known = ended.get(node)
        ended[node] = (
            (in_order, inferred) if known is None else (known[0] or in_order, known[1] and inferred)
        )
