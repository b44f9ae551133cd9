"""Second computation of overlap that was lost: call by call, with lists of intervals.

The traces have neither matrix products beside calls nor large buckets, or many small ones. By how
much calls could be hidden is taken as it is: overlap/overlap_lost/test_hidden.py simulates it.
"""

from __future__ import annotations

import math
from bisect import bisect
from itertools import pairwise
from typing import Any

from commtrace.analyze import load
from commtrace.analyze.overlap.overlap_lost.chances import chances as product
from tests.commtrace.analyze.by_hand import other_end_of, time_of
from tests.commtrace.analyze.second.run import Run, ratio

LOSSES = (
    "issued_late",
    "prefetch_late",
    "bucket_order",
    "waited_at_once",
    "blocked_by_receive",
    "one_stream",
)
NAN = math.nan
Place = tuple[Any, ...]


def chances(run: Run) -> list[dict[str, Any]]:
    """Times, windows and reason of each call."""
    if "chances" not in vars(run):
        vars(run)["chances"] = _chances(run)
    return vars(run)["chances"]


def _chances(run: Run) -> list[dict[str, Any]]:
    assert not any(
        call.carries == "gradients" and call.payload_bytes > 1 << 20 for call in run.comm
    )
    found = [_timed(run, call, wait) for call, wait in zip(run.comm, run.waits, strict=True)]
    for each in found:
        early, late = each["issue"], each["end"]
        if each["ready"] < early:
            early = each["ready"]
        if each["used"] > late:
            late = each["used"]
        each["before"] = NAN if _unknown(each["ready"]) else _free(run, each, early, each["issue"])
        each["after"] = NAN if _unknown(each["used"]) else _free(run, each, each["end"], late)
        known = [part for part in (each["before"], each["after"]) if not _unknown(part)]
        is_known = known and not _unknown(each["transfer"])
        each["beside"] = min(sum(known), each["transfer"]) if is_known else NAN
    saved = product(load(run.trace))["could"].tolist()
    for each, could in zip(found, saved, strict=True):
        each["receive"] = _receive(found, each)
        options = [part for part in (each["beside"], each["receive"]) if not _unknown(part)]
        window = max(options, default=NAN)
        each["reason"] = _reason(run, found, each, window)
        is_known = not _unknown(window) and not _on_device(each["call"])
        # No program has the times of random traces, which are not all replayed.
        assert each["transfer"] == 0 or is_known or _unknown(could)
        each["could"] = 0.0 if each["transfer"] == 0 else could
    return found


def _unknown(value: float) -> bool:
    return math.isnan(value)


def _timed(run: Run, call: Any, wait: Any) -> dict[str, Any]:
    is_timed = call.issue_ns >= 0 and call.blocked_ns >= 0
    exposed = float(call.blocked_ns) if is_timed else NAN
    return {
        "call": call,
        "issue": call.issue_ns if is_timed else NAN,
        "end": run.end(call) if is_timed else NAN,
        "exposed": exposed,
        "transfer": exposed - wait[0] if is_timed and wait is not None else exposed,
        "hidden": max(run.end(call) - call.issue_ns - call.blocked_ns, 0) if is_timed else NAN,
        "ready": _ready(run, call),
        "used": call.result_used_ns if call.result_used_ns >= 0 else NAN,
    }


def _is_gather(call: Any) -> bool:
    return (call.carries, call.kind) == ("parameters", "all_gather") and call.phase != "optimizer"


def _ready(run: Run, call: Any) -> float:
    if call.kind == "recv":
        other = other_end_of(run.comm, call)
        return other.issue_ns if other is not None and other.issue_ns >= 0 else NAN
    if _is_gather(call):
        steps = [each for each in run.steps if (each.rank, each.step) == (call.rank, call.step)]
        return steps[0].start_ns if steps else NAN
    return call.data_ready_ns if call.data_ready_ns >= 0 else NAN


def _free(run: Run, each: dict[str, Any], begin: float, end: float) -> float:
    """Time from `begin` to `end` in which the rank computes and no call of it is in flight."""
    if _unknown(begin) or _unknown(end) or end <= begin:
        return 0.0
    spans = _free_spans(run, each["call"].rank)
    place = max(bisect(spans, (begin,)) - 1, 0)
    total = 0.0
    while place < len(spans) and spans[place][0] < end:
        total += max(min(spans[place][1], end) - max(spans[place][0], begin), 0)
        place += 1
    return total


def _free_spans(run: Run, rank: int) -> list[tuple[float, float]]:
    """This time of a rank, by counting at each edge the running kernels and the calls in flight."""
    known = vars(run).setdefault("free", {})
    if rank not in known:
        ops = [op for op in run.ops if op.rank == rank]
        ran = [(op.start_ns, op.start_ns + op.duration_ns) for op in ops if op.parent < 0]
        flights = [
            (call.issue_ns, run.end(call))
            for call in run.comm
            if call.rank == rank and time_of(call) >= 0
        ]
        edges = [(at, sign, 0) for span in ran for at, sign in zip(span, (1, -1), strict=True)]
        edges += [(at, 0, sign) for span in flights for at, sign in zip(span, (1, -1), strict=True)]
        edges = [(-1, 0 if ops else 1, 0), *sorted(edges), (1 << 62, 0, 0)]
        num_ran = num_in_flight = 0
        known[rank] = []
        for (at, runs, flies), (until, _, _) in pairwise(edges):
            num_ran, num_in_flight = num_ran + runs, num_in_flight + flies
            if num_ran and not num_in_flight and at < until:
                known[rank].append((at, until))
    return known[rank]


def _receive(found: list[dict[str, Any]], each: dict[str, Any]) -> float:
    call = each["call"]
    if call.kind != "recv" or _unknown(each["end"]) or _unknown(each["ready"]):
        return NAN
    earlier = [
        other
        for other in found
        if (other["call"].rank, other["call"].kind) == (call.rank, "recv")
        and other["call"].id < call.id
        and not _unknown(other["end"])
    ]
    if not earlier:
        return NAN
    before = max(earlier, key=lambda other: other["call"].id)
    if before["exposed"] == 0 or before["end"] > each["issue"]:
        return NAN
    waited = max(before["end"] - max(each["ready"], before["issue"]), 0)
    return min(each["transfer"], waited)


def _on_device(call: Any) -> bool:
    return call.device not in ("", "cpu") or call.stream >= 0


def _reason(run: Run, found: list[dict[str, Any]], each: dict[str, Any], window: float) -> str:
    call = each["call"]
    if _unknown(each["exposed"]):
        return "unknown"
    if each["exposed"] == 0:
        return "hidden"
    if each["transfer"] <= 0.1 * each["exposed"]:
        return "late_rank"
    if _on_device(call):
        streams = {
            (kernel.rank, kernel.device, kernel.stream)
            for kernel in run.kernels
            if kernel.category == "compute" and kernel.stream >= 0
        }
        return "one_stream" if (call.rank, call.device, call.stream) in streams else "unknown"
    before, after = (0.0 if _unknown(each[name]) else each[name] for name in ("before", "after"))
    if window >= max(0.1 * each["transfer"], 1):
        if each["receive"] == window and each["beside"] != window:
            return "blocked_by_receive"
        if before < after or after >= each["transfer"] / 2:
            return "waited_at_once"
        if _is_behind(found, each):
            return "bucket_order"
        return "prefetch_late" if _is_gather(call) else "issued_late"
    is_known = not _unknown(each["before"]) and not _unknown(each["after"])
    return "dependent" if is_known else "unknown"


def _is_bucket(call: Any) -> bool:
    return call.carries == "gradients" and call.kind in ("all_reduce", "reduce_scatter")


def _is_behind(found: list[dict[str, Any]], each: dict[str, Any]) -> bool:
    call = each["call"]
    key = call.rank, call.step, call.group
    return _is_bucket(call) and any(
        other["ready"] > each["ready"]
        for other in found
        if _is_bucket(other["call"])
        and (other["call"].rank, other["call"].step, other["call"].group) == key
        and other["call"].id < call.id
    )


def _sum(values: list[float]) -> float:
    known = [value for value in values if not _unknown(value)]
    return sum(known) if known else NAN


def overlap_lost(run: Run) -> list[dict[str, Any]]:
    """Calls by place and reason."""
    names = ("kind", "module", "phase", "source_file", "source_line")
    cells: dict[Place, list[dict[str, Any]]] = {}
    for each in chances(run):
        call = each["call"]
        if call.kind != "barrier":
            place = *(getattr(call, name) for name in names), run.axis(call.group), each["reason"]
            cells.setdefault(place, []).append(each)
    found = []
    for place, calls in cells.items():
        inside = [each for each in calls if each["call"].step >= 0]
        early = [max(e["issue"] - e["ready"], 0) for e in calls if _all_known(e, "issue", "ready")]
        slack = [max(e["used"] - e["end"], 0) for e in calls if _all_known(e, "used", "end")]
        lost = [each["could"] if run.is_steady(each["call"].step) else 0.0 for each in calls]
        steps = {(e["call"].rank, e["call"].step) for e in inside if e["could"] > 0}
        found.append(
            dict(zip((*names, "mesh_axis", "reason"), place, strict=True))
            | {
                "num_calls": len(calls) / run.num_ranks,
                "exposed_ns": _sum([each["exposed"] for each in calls]) / run.num_ranks,
                "transfer_ns": _sum([each["transfer"] for each in calls]) / run.num_ranks,
                "hidden_ns": _sum([each["hidden"] for each in calls]) / run.num_ranks,
                "could_hide_ns": _sum([each["could"] for each in calls]) / run.num_ranks,
                "share_of_steps": ratio(_sum(lost), run.steady_ns),
                "early_ns": sum(early) / len(early) if early else NAN,
                "slack_ns": sum(slack) / len(slack) if slack else NAN,
                "num_steps": len(steps) / run.num_ranks,
            }
        )
    return found


def _all_known(each: dict[str, Any], *names: str) -> bool:
    return not any(_unknown(each[name]) for name in names)


def losses(run: Run) -> list[list[Any]]:
    """Calls of each finding."""
    names = ("kind", "phase", "source_file", "source_line")
    cells: dict[Place, list[dict[str, Any]]] = {}
    for each in chances(run):
        call = each["call"]
        is_lost = each["reason"] in LOSSES and each["could"] > 0 and call.kind != "barrier"
        if is_lost and (call.step >= 0 or not run.steps):
            place = each["reason"], run.axis(call.group), *(getattr(call, name) for name in names)
            cells.setdefault(place, []).append(each)
    num_steps = len({(step.rank, step.step) for step in run.steps})
    found = []
    for calls in cells.values():
        cost = sum(each["could"] for each in calls)
        steps = {(each["call"].rank, each["call"].step) for each in calls}
        if cost >= 0.05 * run.counted_ns and 2 * len(steps) >= num_steps:
            found.append([each["call"] for each in calls])
    return found
