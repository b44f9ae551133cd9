"""Second computation of the critical path, its shares, and slack, from the edges of the graph.

The graph of work is taken as it is: replay/test_engine.py compares its replay with the run. Times,
the path and the latest times are computed by recursion along the edges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from commtrace.analyze import load
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.graph import (
    HOST,
    ISSUE,
    KERNEL,
    KERNEL_BEGIN,
    MEETING,
    TRANSFER,
    WAIT,
)
from tests.commtrace.analyze.second.run import Run

WORDS = (
    "host work", "in the call", "arrival", "transfer", "transfer in turn", "in the wait",
    "return from the wait", "kernel launch", "stream gap", "kernel", "wait for a stream",
    "step mark",
)  # fmt: skip
CALL_POINTS = range(5)
"""Begin, end and completion of a call, begin and end of a wait for it."""
KERNEL_POINTS = (8, 9, 10)
"""Launch, begin and end of a kernel."""


@dataclass(frozen=True)
class _Point:
    sort: int
    rank: int
    row: int
    at: int
    chain: int


@dataclass(frozen=True)
class _Edge:
    source: int
    target: int
    length: int
    sort: int


class _Graph:
    """Points and edges, with times and latest times."""

    def __init__(self, run: Run) -> None:
        self.frames = load(run.trace)
        self.start = self.frames.start_ns
        graph = work_graph(self.frames)
        each = graph.points
        columns = (each.sort, each.rank, each.row, each.at, each.chain)
        self.points = [
            _Point(*row) for row in zip(*(column.tolist() for column in columns), strict=True)
        ]
        links = graph.links
        arrays = (links.source, links.target, links.length, links.sort)
        self.edges = [_Edge(*row) for row in zip(*(a.tolist() for a in arrays), strict=True)]
        self.into: dict[int, list[_Edge]] = defaultdict(list)
        self.out: dict[int, list[_Edge]] = defaultdict(list)
        for edge in self.edges:
            self.into[edge.target].append(edge)
            self.out[edge.source].append(edge)
        self.calls = {int(str(row)): call for row, call in graph.calls.to_dict("index").items()}
        origin = graph.origin.tolist()
        self.time = self._solved(self.into, origin, lambda e, of: of[e.source] + e.length, max)
        self.end = max(self.time.values(), default=0)
        limits = [self.end] * len(self.points)
        self.latest = self._solved(self.out, limits, lambda e, of: of[e.target] - e.length, min)

    def _solved(self, edges: Any, own: list[int], through: Any, best: Any) -> dict[int, int]:
        """The best of each point's own value and the values through its edges, depth first."""
        ends = "source" if edges is self.into else "target"
        found: dict[int, int] = {}
        for start in range(len(self.points)):
            open_points = [start]
            while open_points:
                at = open_points[-1]
                lacking = [getattr(e, ends) for e in edges[at] if getattr(e, ends) not in found]
                if lacking and at not in found:
                    open_points += lacking
                    continue
                open_points.pop()
                found[at] = best([own[at], *(through(e, found) for e in edges[at])])
        return found

    def path(self) -> list[_Edge]:
        def named(point: int) -> tuple[int, int, int]:
            return self.points[point].rank, self.points[point].sort, self.points[point].row

        if not self.points:
            return []
        at = min((p for p, time in self.time.items() if time == self.end), key=named)
        rank, found = self.points[at].rank, []
        while True:
            binding = [e for e in self.into[at] if self.time[e.source] + e.length == self.time[at]]
            if not binding:
                return found[::-1]
            own = [e for e in binding if self.points[e.source].rank == rank]
            found.append(min(own or binding, key=lambda e: (e.sort, *named(e.source))))
            at = found[-1].source
            rank = rank if self.points[at].sort == MEETING else self.points[at].rank

    def call_of(self, point: int) -> int:
        """The call that a point belongs to; -1 if of none."""
        each = self.points[point]
        if each.sort in CALL_POINTS:
            return each.row
        if each.sort in KERNEL_POINTS:
            for row, call in self.calls.items():
                ends = self.points[call["begin_point"]], self.points[call["end_point"]]
                if ends[0].sort == KERNEL_BEGIN and each.row in (ends[0].row, ends[1].row):
                    return row
        return -1

    def next_call(self, point: int) -> int:
        """The call of a point, or of the next point on its chain that has a call."""
        chain = [p for p, each in enumerate(self.points) if each.chain == self.points[point].chain]
        chain.sort(key=lambda p: self.points[p].at)
        after = chain[chain.index(point) :]
        return next((call for p in after if (call := self.call_of(p)) >= 0), -1)


@lru_cache(maxsize=2)
def _graph(run: Run) -> _Graph:
    return _Graph(run)


@lru_cache(maxsize=2)
def _stretches(run: Run) -> list[dict[str, Any]]:
    """Stretches as `begin end sort rank point step from_rank`, by time."""
    graph = _graph(run)
    found: list[dict[str, Any]] = []
    path, until = graph.path(), graph.end
    for edge in reversed(path):
        begin = min(graph.time[edge.source], until)
        rank = graph.points[edge.target].rank
        rank = rank if rank >= 0 else graph.points[edge.source].rank
        later = found[-1] if found else {"sort": -1, "rank": -1}
        if edge.sort == later["sort"] == HOST and rank == later["rank"]:
            later["begin"] = begin
        else:
            found.append(
                {
                    "begin": begin,
                    "end": until,
                    "sort": edge.sort,
                    "rank": rank,
                    "point": edge.target,
                }
            )
        until = begin
    pieces = [piece for each in reversed(found) for piece in _pieces(run, each)]
    before = -1
    for piece in pieces:
        piece["from_rank"] = before if before != piece["rank"] else -1
        before = piece["rank"]
    return pieces


def _pieces(run: Run, stretch: dict[str, Any]) -> list[dict[str, Any]]:
    start = _graph(run).start
    steps = [
        (each.start_ns - start, each.end_ns - start, each.step)
        for each in run.steps
        if each.rank == stretch["rank"] and min(each.start_ns, each.end_ns) >= 0
    ]
    begin, end = stretch["begin"], stretch["end"]
    cuts = sorted({at for first, last, _ in steps for at in (first, last) if begin < at < end})
    edges = [begin, *(cuts if stretch["sort"] == HOST else []), end]
    found = []
    for first, last in pairwise(edges):
        begun = [each for each in steps if each[0] <= first]
        latest = max(begun, key=lambda each: each[0], default=(0, 0, -1))
        step = latest[2] if first < latest[1] else -1
        if last > first:
            found.append({**stretch, "begin": first, "end": last, "step": step})
    return found


def _of_call(run: Run, row: int) -> dict[str, Any]:
    if row < 0:
        texts = ("kind", "mesh_axis", "module", "module_class", "source_file")
        return {"id": -1, "source_line": -1, **dict.fromkeys(texts, "")}
    call = run.comm[row]
    names = ("id", "kind", "module", "module_class", "source_file", "source_line")
    return {name: getattr(call, name) for name in names} | {"mesh_axis": run.axis(call.group)}


def _call_of(run: Run, stretch: dict[str, Any]) -> int:
    graph = _graph(run)
    point = stretch["point"]
    return graph.next_call(point) if stretch["sort"] == HOST else graph.call_of(point)


def critical_path(run: Run) -> list[dict[str, Any]]:
    """The stretches of the path, each described by its call and its kernel."""
    graph, total = _graph(run), 0
    found = []
    for each in _stretches(run):
        point, lasts = graph.points[each["point"]], each["end"] - each["begin"]
        total += lasts
        kernel = run.kernels[point.row] if point.sort in KERNEL_POINTS else None
        op = kernel.name if kernel else ""
        if each["sort"] == HOST:
            op = _operators(run, each) or (kernel.op if kernel else "")
            kernel = None
        found.append(
            {
                "at_ns": each["begin"] + graph.start,
                "duration_ns": lasts,
                "share": lasts,
                **{name: each[name] for name in ("rank", "from_rank", "step")},
                "work": WORDS[each["sort"]],
                **_of_call(run, _call_of(run, each)),
                "op": op,
                "device": kernel.device if kernel else "",
                "stream": kernel.stream if kernel else -1,
                "num_stretches": 1,
            }
        )
    return [row | {"share": row["share"] / total} for row in found]


@lru_cache(maxsize=2)
def _outermost(run: Run) -> dict[int, tuple[list[tuple[int, int, str]], int]]:
    """The outermost operators of each rank by start, and the longest duration of one."""
    found: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for op in run.ops:
        if op.parent < 0 and op.duration_ns > 0:
            found[op.rank].append((op.start_ns, op.duration_ns, op.op))
    return {rank: (sorted(ops), max(each[1] for each in ops)) for rank, ops in found.items()}


def _operators(run: Run, stretch: dict[str, Any]) -> str:
    """The outermost operators with a tenth of the time each, at most three."""
    start, sums = _graph(run).start, defaultdict(int)
    ops, longest_op = _outermost(run).get(stretch["rank"], ([], 0))
    place = bisect_left(ops, (stretch["begin"] + start - longest_op,))
    while place < len(ops) and ops[place][0] < stretch["end"] + start:
        first, lasts, name = ops[place]
        first, last = first - start, first - start + lasts
        sums[name] += max(min(last, stretch["end"]) - max(first, stretch["begin"]), 0)
        place += 1
    lasts = stretch["end"] - stretch["begin"]
    longest = sorted(sums, key=lambda name: (-sums[name], name))[:3]
    return ", ".join(name for name in longest if 10 * sums[name] >= lasts)


def critical_share(run: Run) -> list[dict[str, Any]]:
    """Sums of the stretches in steady steps by work, place and rank."""
    cells: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    has_steps = any(min(each.start_ns, each.end_ns) >= 0 for each in run.steps)
    for each in _stretches(run):
        if has_steps and not run.is_steady(each["step"]):
            continue
        facts = _of_call(run, _call_of(run, each))
        place = tuple(facts[name] for name in PLACE)
        cells[(WORDS[each["sort"]], each["rank"], *place)].append(each["end"] - each["begin"])
    total = sum(map(sum, cells.values()))
    return [
        {
            "work": work,
            "rank": rank,
            **dict(zip(PLACE, place, strict=True)),
            "duration_ns": sum(lasts),
            "share": sum(lasts) / total,
            "num_stretches": len(lasts),
            "max_duration_ns": max(lasts),
        }
        for (work, rank, *place), lasts in cells.items()
    ]


PLACE = ("kind", "mesh_axis", "module", "source_file", "source_line")


def slack(run: Run) -> list[dict[str, Any]]:
    """Slack of the calls' own edges by place."""
    graph = _graph(run)
    sites: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, call in graph.calls.items():
        into = graph.into[call["end_point"]]
        own = [e for e in into if e.sort == TRANSFER] or [
            e for e in into if e.sort in (ISSUE, KERNEL)
        ]
        if own:
            slacks = [graph.latest[e.target] - e.length - graph.time[e.source] for e in own]
            facts = _of_call(run, row)
            sites[tuple(facts[name] for name in PLACE)].append(min(slacks))
    return [
        {
            **dict(zip(PLACE, place, strict=True)),
            "num_calls": len(slacks),
            "num_critical": slacks.count(0),
            "share_critical": slacks.count(0) / len(slacks),
            "min_slack_ns": min(slacks),
            "median_slack_ns": median(slacks),
        }
        for place, slacks in sites.items()
    ]


OPERATOR = ["op", "module", "phase"]


def op_slack(run: Run) -> list[dict[str, Any]]:
    """Least slack of the main thread's edges during each operator, by operator and module."""
    graph = _graph(run)
    chains: dict[int, dict[int, list[_Edge]]] = defaultdict(lambda: defaultdict(list))
    for edge in graph.edges:
        source, target = graph.points[edge.source], graph.points[edge.target]
        if edge.sort in (HOST, ISSUE, WAIT) and source.chain == target.chain >= 0:
            chains[target.rank][target.chain].append(edge)
    main = {
        rank: max(of_rank.items(), key=lambda item: (len(item[1]), -item[0]))[1]
        for rank, of_rank in chains.items()
    }
    sites: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in graph.frames.ops.to_dict("records"):
        begin = row["start_ns"] - graph.start
        end = begin + row["duration_ns"]
        slacks = [
            graph.latest[e.target] - e.length - graph.time[e.source]
            for e in main.get(row["rank"], ())
            if graph.time[e.target] > begin and graph.time[e.source] < end
        ]
        if row["start_ns"] >= 0 and row["duration_ns"] >= 0 and slacks:
            sites[tuple(row[name] for name in OPERATOR)].append(min(slacks))
    return [
        {
            **dict(zip(OPERATOR, place, strict=True)),
            "num_ops": len(slacks),
            "num_critical": sum(each <= 0 for each in slacks),
            "share_critical": sum(each <= 0 for each in slacks) / len(slacks),
            "min_slack_ns": min(slacks),
            "median_slack_ns": median(slacks),
        }
        for place, slacks in sites.items()
    ]
