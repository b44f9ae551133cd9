"""A trace as rows, with the cached intermediate results that several tables share."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from commtrace.tracefile import Trace
from tests.commtrace.analyze.by_hand import (
    TRANSFERS,
    duration_of,
    last_calls_of,
    rows,
    steps_left_out,
    waits_and_last_calls_of,
)

Interval = tuple[int, int]


class Run:
    """The rows of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.facts = trace.run
        self.comm = rows(trace, "comm")
        self.groups = {group.name: group for group in rows(trace, "groups")}
        self.ranks = {rank.rank: rank for rank in rows(trace, "ranks")}
        self.steps = rows(trace, "steps")

    @cached_property
    def ops(self) -> list[Any]:
        return rows(self.trace, "ops")

    @cached_property
    def kernels(self) -> list[Any]:
        return rows(self.trace, "kernels")

    @cached_property
    def pipeline_actions(self) -> list[Any]:
        return rows(self.trace, "pipeline_actions")

    @cached_property
    def communicators(self) -> list[Any]:
        return rows(self.trace, "communicators")

    @cached_property
    def fingerprints(self) -> list[Any]:
        return rows(self.trace, "fingerprints")

    @cached_property
    def num_ranks(self) -> int:
        return len(self.ranks) or len({call.rank for call in self.comm})

    @cached_property
    def recorded_ns(self) -> int:
        return sum(rank.end_ns - rank.start_ns for rank in self.ranks.values())

    @cached_property
    def counted_ns(self) -> int:
        return self.steady_ns or self.recorded_ns

    @cached_property
    def steady_ns(self) -> int:
        """Time of the steady steps of all ranks."""
        return sum(each.end_ns - each.start_ns for each in self.steps if self.is_steady(each.step))

    @cached_property
    def _left_out(self) -> set[int]:
        return steps_left_out(self.trace)

    def is_steady(self, step: int) -> bool:
        """True of a step that shares count."""
        return step >= 0 and step not in self._left_out

    @cached_property
    def waits(self) -> list[tuple[int, Any] | None]:
        """Wait of each call and the call that ended it; None if not known."""
        return waits_and_last_calls_of(self.trace)

    @cached_property
    def lasts(self) -> list[Any]:
        """The last call to arrive of those that each call needs; None if not known."""
        return last_calls_of(self.trace)

    @cached_property
    def last_of(self) -> dict[tuple[int, int], Any]:
        """The same by rank and id of the call."""
        calls = [(call.rank, call.id) for call in self.comm]
        return dict(zip(calls, self.lasts, strict=True))

    @cached_property
    def collectives(self) -> dict[tuple[str, str, int], list[Any]]:
        """Members' calls of complete collectives, by group, kind and number."""
        found: dict[tuple[str, str, int], list[Any]] = {}
        for call, number, last in zip(self.comm, self.numbers, self.lasts, strict=True):
            if last is not None and call.kind not in TRANSFERS:
                found.setdefault((call.group, call.kind, number), []).append(call)
        return found

    @cached_property
    def wait_of(self) -> dict[tuple[int, int], tuple[int, Any] | None]:
        """The waits by rank and id of the call."""
        calls = [(call.rank, call.id) for call in self.comm]
        return dict(zip(calls, self.waits, strict=True))

    @cached_property
    def numbers(self) -> list[int]:
        """Sequence number of each collective in its group, per rank; -1 for transfers."""
        made: dict[tuple[int, str], int] = {}
        found = dict.fromkeys(range(len(self.comm)), -1)
        for row in sorted(found, key=lambda row: self.comm[row].seq):
            call = self.comm[row]
            if call.kind not in ("send", "recv"):
                key = call.rank, call.group
                found[row] = made[key] = made.get(key, -1) + 1
        return list(found.values())

    @cached_property
    def earlier_ends(self) -> dict[tuple[int, int], int]:
        """Last end of the earlier calls of a call's rank, by rank and id; -1 if there is none."""
        found: dict[tuple[int, int], int] = {}
        so_far = dict.fromkeys((call.rank for call in self.comm), -1)
        for call in sorted(self.comm, key=lambda call: call.id):
            found[call.rank, call.id] = so_far[call.rank]
            if call.issue_ns >= 0:
                so_far[call.rank] = max(so_far[call.rank], self.end(call))
        return found

    @cached_property
    def blocked(self) -> dict[int, list[tuple[Interval, Any]]]:
        """Intervals in which each rank was blocked, and the calls that blocked it."""
        found: dict[int, list[tuple[Interval, Any]]] = {call.rank: [] for call in self.comm}
        for call in self.comm:
            found[call.rank] += [(span, call) for span in self.blocks(call)]
        return found

    @cached_property
    def maybe_blocked(self) -> dict[int, list[tuple[Interval, Any]]]:
        """Intervals in which each rank may have been blocked, and their calls."""
        found: dict[int, list[tuple[Interval, Any]]] = {call.rank: [] for call in self.comm}
        for call in self.comm:
            if call.issue_ns >= 0 and call.blocked_ns < 0:
                found[call.rank].append(((call.issue_ns, self.end(call)), call))
        return found

    @cached_property
    def without_core(self) -> dict[int, list[tuple[Interval, Any]]]:
        """Intervals before calls in which their threads had no core, and the calls."""
        found: dict[int, list[tuple[Interval, Any]]] = {call.rank: [] for call in self.comm}
        for call in self.comm:
            if call.issue_ns >= 0 and call.run_delay_ns > 0:
                span = call.issue_ns - call.run_delay_ns, call.issue_ns
                found[call.rank].append((span, call))
        return found

    @cached_property
    def kernels_of(self) -> dict[int, list[Any]]:
        """The kernels of each rank whose time is known."""
        found: dict[int, list[Any]] = {call.rank: [] for call in self.comm}
        for kernel in self.kernels:
            if min(kernel.start_ns, kernel.duration_ns) >= 0:
                found.setdefault(kernel.rank, []).append(kernel)
        return found

    def axis(self, group: str) -> str:
        return self.groups[group].mesh_axis if group in self.groups else ""

    def members(self, group: str) -> list[int]:
        known = self.groups.get(group)
        return [int(rank) for rank in known.ranks.split(",") if rank] if known else []

    def end(self, call: Any) -> int:
        return call.issue_ns + duration_of(call)

    def blocks(self, call: Any) -> list[Interval]:
        """Intervals in which a call blocks its rank: in the call, and in the wait for it."""
        if call.issue_ns < 0 or call.blocked_ns <= 0:
            return []
        in_call = max(min(call.call_ns, call.blocked_ns), 0)
        end = self.end(call)
        returned = call.issue_ns + in_call
        spans = [
            (call.issue_ns, returned),
            (max(end - (call.blocked_ns - in_call), returned), end),
        ]
        return [span for span in spans if span[0] < span[1]]


def covered(intervals: list[Interval]) -> int:
    """Total time covered by at least one interval, from a count of open intervals at each edge."""
    edges = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    total, num_open, before = 0, 0, 0
    for at, change in edges:
        total += at - before if num_open else 0
        num_open, before = num_open + change, at
    return total


def known_ratio(part: float, total: float) -> float:
    """The ratio; nan if either is negative, that is unknown."""
    return ratio(part, total) if part >= 0 and total >= 0 else float("nan")


def ratio(part: float, total: float) -> float:
    return part / total if total else float("nan")
