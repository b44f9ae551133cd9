"""Second computation of reasons for lateness, from the sections between all edges of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from tests.commtrace.analyze.by_hand import EVERYONE
from tests.commtrace.analyze.second.run import Interval, Run

NAN = float("nan")
Uses = dict[str, int]

REASONS = {
    "compute": "longer compute",
    "copies": "memory copies",
    "communication": "blocked in another group",
    "not launched": "host late",
    "launched": "launch delayed",
    "idle": "",
    "blocked": "blocked in another group",
    "maybe blocked": "",
    "work": "longer work",
    "no core": "no free core",
}
CAUSES = {
    "idle": "the launch of its kernel is not in the trace",
    "maybe blocked": "the blocked time of earlier calls is unknown",
}
PARTS = {
    "compute": ("own compute", "behind another kernel"),
    "communication": ("own communication", "behind another kernel"),
    "blocked": ("own blocked", "blocked in an earlier call"),
}


def straggler_of(run: Run, calls: list[Any]) -> Any:
    """The call for which other members waited; None without such a call."""
    late = [run.last_of[call.rank, call.id] for call in calls]
    return next(
        (last for call, last in zip(calls, late, strict=True) if last.rank != call.rank), None
    )


@lru_cache(maxsize=2)
def reasons(run: Run) -> dict[tuple[int, int], tuple[str, float, float, str]]:
    """Reason, excess, usual amount and cause of the unknown, by rank and id of each straggler."""
    found = {}
    for (group, _, number), calls in run.collectives.items():
        late = straggler_of(run, calls)
        if late is not None:
            found[late.rank, late.id] = _reason(run, group, number, calls, late)
    return found


def _reason(
    run: Run, group: str, number: int, calls: list[Any], late: Any
) -> tuple[str, float, float, str]:
    begins = _begins(run, group, number, calls)
    measured = [_uses(run, call, begin) for call, begin in zip(calls, begins, strict=True)]
    clocks = {clock for clock, _ in measured}
    if "lone" in clocks:
        return "", NAN, NAN, "the trace has no other kernels of the device"
    if len(clocks) > 1:
        return "", NAN, NAN, "its members ran on devices and on hosts"
    own = next(
        uses for call, (_, uses) in zip(calls, measured, strict=True) if call.rank == late.rank
    )
    others = [
        uses for call, (_, uses) in zip(calls, measured, strict=True) if call.rank != late.rank
    ]
    usual = {name: median(uses[name] for uses in others) for name in own}
    over = {name: own[name] - usual[name] for name in own}
    # Time without a core, as long as the others would have lacked one for that much more work.
    rate = usual["no core"] / usual["work"] if usual["work"] > 0 else 0
    moved = min(max(over["work"], 0) * rate, max(over["no core"], 0))
    over |= {"work": over["work"] + moved, "no core": over["no core"] - moved}
    use = max(REASONS, key=lambda name: over[name])
    delay = median(late.issue_ns - call.issue_ns for call in calls if call.rank != late.rank)
    if over[use] <= 0 or 2 * over[use] < delay:
        pairs = list(zip(calls, begins, strict=True))
        begin = next(begin for call, begin in pairs if call.rank == late.rank)
        later = median(begin - each for call, each in pairs if call.rank != late.rank)
        if 2 * later >= delay:
            return "", NAN, NAN, "it was late already where the comparison begins"
        return "", NAN, NAN, "no use of time explains half of the delay"
    reason = REASONS[use]
    if use in PARTS:
        part, other = PARTS[use]
        is_program = part == "own compute" and usual[part] > 0
        reason = other if 2 * over[part] >= over[use] and not is_program else reason
    if not reason:
        return "", NAN, NAN, CAUSES[use]
    return reason, float(over[use]), float(usual[use]), ""


def _begins(run: Run, group: str, number: int, calls: list[Any]) -> list[int]:
    """End of the last collective in common, else of each rank's earlier calls, else the start."""
    for before in range(number - 1, -1, -1):
        for kind in EVERYONE:
            ends = {
                call.rank: call.complete_ns
                for call in run.collectives.get((group, kind, before), ())
                if call.complete_ns >= call.issue_ns
            }
            if all(ends.get(call.rank, math.inf) <= call.issue_ns for call in calls):
                return [ends[call.rank] for call in calls]
    ends = [run.earlier_ends[call.rank, call.id] for call in calls]
    if -1 not in ends:
        return [min(end, call.issue_ns) for end, call in zip(ends, calls, strict=True)]
    return [min(run.ranks[call.rank].start_ns, call.issue_ns) for call in calls]


def _uses(run: Run, call: Any, begin: int) -> tuple[str, Uses]:
    """Clock that measures the time before a call, and that time by use."""
    own = [
        each
        for each in run.kernels_of[call.rank]
        if each.call_id == call.id and each.category == "communication"
    ]
    if own:
        return _on_device(run, min(own, key=lambda each: each.start_ns), (begin, call.issue_ns))
    span = begin, call.issue_ns
    blocked = [each for each in run.blocked[call.rank] if _meet(each[0], span)]
    maybe = [each for each in run.maybe_blocked[call.rank] if _meet(each[0], span)]

    def is_own_blocked(inside: Callable[[Iterable[Any]], list[Any]]) -> bool:
        return any(each.group == call.group for _, each in inside(blocked))

    waited = [each for each in run.without_core[call.rank] if _meet(each[0], span)]

    def use(inside: Callable[[Iterable[Any]], list[Any]]) -> list[str]:
        if inside(waited):
            return ["no core", *["own blocked"] * is_own_blocked(inside)]
        if inside(blocked):
            return ["blocked", *["own blocked"] * is_own_blocked(inside)]
        return ["maybe blocked"] if inside(maybe) else ["work"]

    return "host", _sums(span, [*blocked, *maybe, *waited], use)


def _meet(one: Interval, other: Interval) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _on_device(run: Run, kernel: Any, span: Interval) -> tuple[str, Uses]:
    others = [
        ((each.start_ns, each.start_ns + each.duration_ns), each)
        for each in run.kernels_of[kernel.rank]
        if each.device == kernel.device
    ]
    launch = kernel.launch_ns
    at_launch = [((launch, launch + 1), None)] if launch >= 0 else []

    def use(inside: Callable[[Iterable[Any]], list[Any]]) -> list[str]:
        running = [each for _, each in inside(others)]
        sorts = {each.category for each in running}
        own = {
            "own communication" if each.category == "communication" else "own compute"
            for each in running
            if each.stream == kernel.stream and each.category in ("communication", "compute")
        }
        if "compute" in sorts:
            return ["compute", *own]
        if sorts & {"memcpy", "memset"}:
            return ["copies", *own]
        if sorts:
            return ["communication", *own]
        if launch < 0:
            return ["idle"]
        return ["launched" if inside([((launch, math.inf), None)]) else "not launched"]

    has_others = any(each.category != "communication" for _, each in others)
    return "device" if has_others else "lone", _sums(span, [*others, *at_launch], use)


def _sums(span: Interval, intervals: list[Any], use: Any) -> Uses:
    """Add up the sections between all edges by their uses."""
    found = dict.fromkeys([*REASONS, *[part for part, _ in PARTS.values()]], 0)
    edges = {edge for (start, end), _ in intervals for edge in (start, end)}
    edges = {edge for edge in edges if span[0] < edge < span[1]} | set(span)
    for start, end in pairwise(sorted(edges)):

        def inside(given: Iterable[Any], start: int = start, end: int = end) -> list[Any]:
            return [each for each in given if each[0][0] <= start and end <= each[0][1]]

        for name in use(inside):
            found[name] += end - start
    return found


def start_skew(run: Run) -> list[dict[str, Any]]:
    """All collectives by skew, the 200 largest."""
    known = reasons(run)
    found = []
    for (group, kind, number), calls in run.collectives.items():
        ordered = sorted(calls, key=lambda call: (call.issue_ns, call.rank))
        last = min(
            (call for call in calls if call.issue_ns == ordered[-1].issue_ns),
            key=lambda call: call.rank,
        )
        skew = last.issue_ns - ordered[0].issue_ns
        waits = [run.wait_of[call.rank, call.id] for call in calls]
        late = straggler_of(run, calls)
        reason = known[late.rank, late.id] if late else ("", NAN, NAN, "nobody waited")
        if skew > 0:
            found.append(
                {
                    "kind": kind,
                    "group": group,
                    "mesh_axis": run.axis(group),
                    "number": number,
                    "step": last.step,
                    "first_rank": ordered[0].rank,
                    "last_rank": last.rank,
                    "skew_ns": skew,
                    "wait_ns": sum(w[0] for w in waits if w) if any(waits) else -1,
                    "straggler": late.rank if late else -1,
                    "call": f"{late.rank}:{late.id}" if late else "",
                    **dict(
                        zip(("reason", "excess_ns", "usual_ns", "unknown"), reason, strict=True)
                    ),
                }
            )
    found.sort(key=lambda row: (-row["skew_ns"], row["group"], row["number"]))
    return found[:200]
