"""Second computation of time: overlaps, waits, last ranks, and the activity of each rank."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from tests.commtrace.analyze.by_hand import time_of
from tests.commtrace.analyze.second.late import reasons
from tests.commtrace.analyze.second.run import Interval, Run, covered, known_ratio, ratio

STATES = {
    "barrier": "Wait at Barrier",
    "broadcast": "Late Broadcast",
    "scatter": "Late Broadcast",
    "reduce": "Early Reduce",
    "gather": "Early Reduce",
    "recv": "Late Sender",
    "send": "Late Receiver",
}


def overlap(run: Run) -> list[dict[str, Any]]:
    """Steps of each rank that were marked or have calls."""
    lasted: dict[tuple[int, int], int] = {}
    for step in run.steps:
        lasted[step.step, step.rank] = step.end_ns - step.start_ns
    called = {(call.step, call.rank) for call in run.comm}
    found = []
    for step, rank in called | lasted.keys():
        calls = [call for call in run.comm if (call.step, call.rank) == (step, rank)]
        total = lasted.get((step, rank), -1)
        if step < 0:
            inside = sum(ns for (_, other), ns in lasted.items() if other == rank)
            total = max(run.ranks[rank].end_ns - run.ranks[rank].start_ns - inside, 0)
        ended = [call for call in calls if time_of(call) >= 0]
        busy = covered([(call.issue_ns, run.end(call)) for call in ended])
        exposed = covered([span for call in calls for span in run.blocks(call)])
        known = [call for call in calls if call.issue_ns >= 0 and call.blocked_ns >= 0]
        unknown = busy - covered([(call.issue_ns, run.end(call)) for call in known])
        hidden = max(busy - exposed - unknown, 0)
        exposed = min(exposed, total) if total >= 0 else exposed
        if calls and not ended:
            busy = unknown = -1
        if calls and not known:
            exposed = hidden = -1
        found.append(
            {
                "step": step,
                "rank": rank,
                "duration_ns": total,
                "communication_ns": busy,
                "exposed_ns": exposed,
                "overlapped_ns": hidden,
                "unknown_ns": unknown,
                "num_calls": len(calls),
                "num_untimed": len(calls) - len(known),
                "exposed_share": known_ratio(exposed, total),
                "overlapped_share": known_ratio(hidden, busy),
            }
        )
    return found


def balance(run: Run) -> list[dict[str, Any]]:
    """POP efficiencies, from the rows of `overlap`."""
    found = []
    by_rank = overlap(run)
    for step in {row["step"] for row in by_rank}:
        rows = [row for row in by_rank if row["step"] == step]
        useful = {
            row["rank"]: max(row["duration_ns"] - row["exposed_ns"], 0)
            for row in rows
            if min(row["duration_ns"], row["exposed_ns"]) >= 0
        }
        longest = max(row["duration_ns"] for row in rows)
        mean = sum(useful.values()) / len(useful) if useful else math.nan
        most = max(useful.values(), default=-1)
        found.append(
            {
                "step": step,
                "duration_ns": longest,
                "mean_useful_ns": mean,
                "max_useful_ns": most,
                "busiest_rank": min((rank for rank in useful if useful[rank] == most), default=-1),
                "num_unknown": len(rows) - len(useful),
                "imbalance": known_ratio(most, mean) - 1,
                "load_balance": known_ratio(mean, most),
                "communication_efficiency": known_ratio(most, longest),
                "parallel_efficiency": known_ratio(mean, longest),
            }
        )
    return found


def wait_states(run: Run) -> list[dict[str, Any]]:
    """Calls with a known wait, by state, kind and axis."""
    cells: dict[tuple[str, str, str], list[tuple[Any, int, int]]] = {}
    for call, wait in zip(run.comm, run.waits, strict=True):
        if wait is not None:
            state = STATES.get(call.kind, "Wait at N x N")
            key = state, call.kind, run.axis(call.group)
            cells.setdefault(key, []).append((call, wait[0], wait[1].rank))
    found = []
    for (state, kind, axis), calls in cells.items():
        causes: Counter[int] = Counter()
        for _, wait, last in calls:
            causes[last] += wait
        worst = min(causes, key=lambda rank: (-causes[rank], rank))
        total = sum(wait for _, wait, _ in calls)
        stands_out = causes[worst] and 2 * causes[worst] * run.num_ranks >= 3 * total
        found.append(
            {
                "state": state,
                "kind": kind,
                "mesh_axis": axis,
                "num_calls": len(calls),
                "num_waits": sum(wait > 0 for _, wait, _ in calls),
                "wait_ns": total,
                "transfer_ns": sum(call.blocked_ns - wait for call, wait, _ in calls),
                "max_wait_ns": max(wait for _, wait, _ in calls),
                "share": ratio(total, run.recorded_ns),
                "worst_rank": worst if stands_out else -1,
                "worst_wait_ns": causes[worst] if stands_out else 0,
            }
        )
    return found


def rank_waits(run: Run) -> list[dict[str, Any]]:
    """All calls of each rank by wait state, with a known wait or without."""
    met = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    cells: dict[tuple[int, str], list[tuple[Any, Any]]] = {}
    for call, wait in zip(run.comm, run.waits, strict=True):
        state = STATES.get(call.kind, "Wait at N x N" if call.kind in met else "Other")
        cells.setdefault((call.rank, state), []).append((call, wait))
    found = []
    for (rank, state), calls in cells.items():
        waited = [(call, wait[0]) for call, wait in calls if wait]
        rest = [call for call, wait in calls if not wait and call.blocked_ns >= 0]
        found.append(
            {
                "rank": rank,
                "state": state,
                "num_calls": len(calls),
                "num_waits": sum(wait > 0 for _, wait in waited) if waited else -1,
                "wait_ns": sum(wait for _, wait in waited) if waited else -1,
                "transfer_ns": sum(c.blocked_ns - wait for c, wait in waited) if waited else -1,
                "unknown_ns": sum(c.blocked_ns for c in rest) if waited or rest else -1,
                "num_untimed": len(calls) - len(waited) - len(rest),
            }
        )
    return found


def skew(run: Run) -> list[dict[str, Any]]:
    """Collectives with all of their members; waits where they are known."""
    cells: dict[tuple[str, str], list[list[Any]]] = {}
    for (group, kind, _), calls in run.collectives.items():
        cells.setdefault((group, kind), []).append(calls)
    found = []
    for (group, kind), collectives in cells.items():
        times = [[call.issue_ns for call in calls] for calls in collectives]
        apart = [max(issued) - min(issued) for issued in times]
        lasts = Counter(
            min(call.rank for call in calls if call.issue_ns == max(issued))
            for calls, issued in zip(collectives, times, strict=True)
        )
        often = min(lasts, key=lambda rank: (-lasts[rank], rank))
        flat = [(call, run.wait_of[call.rank, call.id]) for calls in collectives for call in calls]
        known = [(call, wait[0]) for call, wait in flat if wait is not None]
        found.append(
            {
                "group": group,
                "mesh_axis": run.axis(group),
                "kind": kind,
                "num_collectives": len(collectives),
                "mean_skew_ns": sum(apart) / len(apart),
                "max_skew_ns": max(apart),
                "wait_ns": sum(wait for _, wait in known) if known else -1,
                "transfer_ns": sum(c.blocked_ns - wait for c, wait in known) if known else -1,
                "last_rank": often,
                "last_share": lasts[often] / len(collectives),
            }
        )
    return found


def delayed_calls(run: Run) -> list[tuple[Any, list[tuple[Any, int]]]]:
    """Each call that others waited for, with these and their waits, if all of them waited."""
    met: dict[tuple[int, int], tuple[Any, list[tuple[Any, int]]]] = {}
    for call, wait in zip(run.comm, run.waits, strict=True):
        if wait is not None and wait[1].rank != call.rank:
            last = wait[1]
            met.setdefault((last.rank, last.id), (last, []))[1].append((call, wait[0]))
    return [(last, others) for last, others in met.values() if min(w for _, w in others) > 0]


def work_before(run: Run, call: Any) -> float:
    """Time between the end of all earlier calls of the rank and this call; nan for the first."""
    end = run.earlier_ends[call.rank, call.id]
    return float(max(call.issue_ns - end, 0)) if end >= 0 else float("nan")


def stragglers(run: Run) -> list[dict[str, Any]]:
    """Stragglers by place."""
    cells: dict[tuple[Any, ...], list[tuple[Any, list[tuple[Any, int]]]]] = {}
    for last, others in delayed_calls(run):
        place = last.phase, last.module, last.source_file, last.source_line
        key = last.rank, last.kind, run.axis(last.group), *place
        cells.setdefault(key, []).append((last, others))
    names = ("rank", "kind", "mesh_axis", "phase", "module", "source_file", "source_line")
    found = []
    for key, events in cells.items():
        delays = [min(wait for _, wait in others) for _, others in events]
        longest = max(delays)
        worst = min(
            (last for (last, _), delay in zip(events, delays, strict=True) if delay == longest),
            key=lambda last: last.id,
        )
        reason, excess = main_reason(run, events, delays)
        works = [mean_known([work_before(run, call) for call, _ in others]) for _, others in events]
        found.append(
            dict(zip(names, key, strict=True))
            | {
                "num_late": len(events),
                "delay_ns": sum(delays),
                "wait_ns": sum(wait for _, others in events for _, wait in others),
                "max_delay_ns": longest,
                "worst_step": worst.step,
                "worst_call": f"{worst.rank}:{worst.id}",
                "work_ns": mean_known([work_before(run, last) for last, _ in events]),
                "others_work_ns": mean_known(works),
                "reason": reason,
                "excess_ns": excess,
            }
        )
    most: list[dict[str, Any]] = []
    for rank in run.ranks:
        own = [row for row in found if row["rank"] == rank]
        own.sort(key=lambda row: (-row["delay_ns"], *[row[name] for name in names]))
        most += own[:16]
    return most


def main_reason(run: Run, events: list[Any], delays: list[int]) -> tuple[str, float]:
    """Reason of at least half of the delay, and its total excess."""
    sums: dict[str, list[float]] = {}
    for (last, _), delay in zip(events, delays, strict=True):
        reason, excess, *_ = reasons(run).get((last.rank, last.id), ("", 0.0))
        if reason:
            total = sums.setdefault(reason, [0.0, 0.0])
            total[0], total[1] = total[0] + delay, total[1] + excess
    main = min(sums, key=lambda reason: (-sums[reason][0], reason), default="")
    if not main or 2 * sums[main][0] < sum(delays):
        return "", float("nan")
    return main, sums[main][1]


def mean_known(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return ratio(sum(known), len(known))


def activity(run: Run) -> list[dict[str, Any]]:
    """Activity between consecutive edges: the first of the open intervals determines it.

    Calls of unknown blocked time count while no other call is known to block the rank.
    """
    found = []
    for rank in {call.rank for call in run.comm}:
        blocks = _blocks_of(run, rank)
        num_blocks = len(blocks)
        blocks += _untimed_of(run, rank)
        arrived = [
            wait[1].issue_ns if wait and _waits_for_it(call, wait[1]) else -1
            for _, call, wait in blocks
        ]
        edges = {edge for span, _, _ in blocks for edge in span}
        edges |= {
            at for (span, _, _), at in zip(blocks, arrived, strict=True) if span[0] < at < span[1]
        }
        segments: list[tuple[tuple[int, str], int, int]] = []
        ordered = sorted(edges)
        coming = sorted(enumerate(blocks), key=lambda each: (each[1][0][0], each[0]))[::-1]
        begun = list[int]()
        for start, end in pairwise(ordered):
            while coming and coming[-1][1][0][0] <= start:
                begun.append(coming.pop()[0])
            begun = [which for which in begun if start < blocks[which][0][1]]
            # Those that block the rank precede those of which that is unknown.
            which = min(begun, key=lambda each: each >= num_blocks) if begun else -1
            state = (
                "working"
                if which < 0
                else "unknown"
                if which >= num_blocks
                else "waiting"
                if start < arrived[which]
                else "transferring"
            )
            if segments and segments[-1][0] == (which, state):
                segments[-1] = (segments[-1][0], segments[-1][1], end)
            else:
                segments.append(((which, state), start, end))
        step = -1
        for (which, state), start, end in segments:
            call = blocks[which][1] if which >= 0 else None
            step = call.step if call else step
            found.append(
                {
                    "rank": rank,
                    "start_ns": start,
                    "duration_ns": end - start,
                    "activity": state,
                    "kind": call.kind if call else "",
                    "id": call.id if call else -1,
                    "step": step,
                }
            )
    return found


def _untimed_of(run: Run, rank: int) -> list[tuple[Interval, Any, Any]]:
    """Spans of calls of known end and unknown blocked time, by time."""
    found = [
        ((call.issue_ns, run.end(call)), call, None)
        for call in run.comm
        if call.rank == rank and call.blocked_ns < 0 and time_of(call) > 0
    ]
    return sorted(found, key=lambda each: each[0])


def _waits_for_it(call: Any, last: Any) -> bool:
    return last is not call


def _blocks_of(run: Run, rank: int) -> list[tuple[Interval, Any, Any]]:
    """Intervals in which calls block a rank, by time; on ties a call precedes a wait."""
    found = [
        (span, call, wait)
        for call, wait in zip(run.comm, run.waits, strict=True)
        if call.rank == rank
        for span in run.blocks(call)
    ]
    return sorted(found, key=lambda each: (*each[0], each[0][0] != each[1].issue_ns))
