"""Second computation of tables without time: sizes, traffic matrix, calls, and facts."""

from __future__ import annotations

import json
from typing import Any

from commtrace.units import text_of_duration
from tests.commtrace.analyze.second.run import Run


def sizes(run: Run) -> list[dict[str, Any]]:
    """Calls by powers of two of the payload, found by doubling."""
    cells: dict[tuple[str, str, int], list[Any]] = {}
    for call in run.comm:
        if call.payload_bytes < 0:
            continue
        power = 0
        while call.payload_bytes >= max(2 * power, 1):
            power = max(2 * power, 1)
        cells.setdefault((call.kind, call.group, power), []).append(call)
    return [
        {
            "kind": kind,
            "group": group,
            "mesh_axis": run.axis(group),
            "from_bytes": power,
            "num_calls": len(calls),
            "payload_bytes": sum(call.payload_bytes for call in calls),
            "blocked_ns": sum(call.blocked_ns for call in calls if call.blocked_ns >= 0)
            if any(call.blocked_ns >= 0 for call in calls)
            else -1,
            "num_untimed": sum(call.blocked_ns < 0 for call in calls),
        }
        for (kind, group, power), calls in cells.items()
    ]


def _receivers(run: Run, call: Any) -> list[int]:
    """Ranks that receive equal shares of the bytes that a call sends."""
    members = run.members(call.group)
    if call.kind == "send":
        return [call.peer] if call.peer >= 0 else []
    if call.kind == "gather":
        return [call.root] if call.root >= 0 else []
    if call.rank not in members:
        return []
    if call.kind in ("all_to_all", "scatter"):
        return [rank for rank in members if rank != call.rank]
    return [members[(members.index(call.rank) + 1) % len(members)]]


def matrix(run: Run) -> list[dict[str, Any]]:
    """Bytes of every call, distributed to their receivers."""
    cells: dict[tuple[int, int], list[float]] = {}
    for call in run.comm:
        if call.wire_bytes <= 0 or call.kind == "recv":
            continue
        receivers = _receivers(run, call)
        shares = {target: call.wire_bytes / len(receivers) for target in receivers}
        if call.input_splits:
            sizes = zip(run.members(call.group), call.input_splits.split(","), strict=False)
            shares = {to: int(size) for to, size in sizes if to != call.rank and int(size)}
        for target, size in shares.items():
            cell = cells.setdefault((call.rank, target), [0.0, 0])
            cell[0] += size
            cell[1] += 1
    return [
        {"source": source, "target": target, "wire_bytes": size, "num_calls": num}
        for (source, target), (size, num) in cells.items()
    ]


def calls(run: Run) -> list[dict[str, Any]]:
    """The calls, with their waits where known."""
    found = []
    for call, wait in zip(run.comm, run.waits, strict=True):
        known = (wait[0], call.blocked_ns - wait[0], wait[1].rank) if wait else (-1, -1, -1)
        names = ("wait_ns", "transfer_ns", "last_rank")
        row = call._asdict() | {"mesh_axis": run.axis(call.group)}
        found.append(row | dict(zip(names, known, strict=True)))
    return found


def facts(run: Run) -> list[dict[str, Any]]:
    """Facts from the tables, and from the run's description."""
    ranks = run.ranks.values()
    begun, ended = min(r.start_ns for r in ranks), max(r.end_ns for r in ranks)
    known = {
        "sizes": [call.payload_bytes for call in run.comm],
        "bytes sent": [call.wire_bytes for call in run.comm],
        "ends": [call.complete_ns for call in run.comm],
        "blocked times": [call.blocked_ns for call in run.comm],
    }
    reported = {
        "ranks recorded": str(len(ranks)),
        "hosts": ", ".join(sorted({rank.host for rank in ranks})),
        "devices": ", ".join(sorted({rank.device for rank in ranks} - {""})),
        "backends": ", ".join(sorted({each.backend for each in run.groups.values()} - {""})),
        "steps": str(len({step.step for step in run.steps})),
        "recorded time": text_of_duration(ended - begun),
        "communication calls": str(len(run.comm)),
        **{
            f"{name} known": f"of {sum(value >= 0 for value in values)} of {len(values)} calls"
            for name, values in known.items()
            if min(values) < 0
        },
        "operators": str(run.trace.num_rows("ops")),
        "process groups": str(len(run.groups)),
        "calls dropped": str(sum(max(rank.num_dropped, 0) for rank in ranks)),
    }
    for name, value in run.facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = ", ".join(each if isinstance(each, str) else json.dumps(each) for each in value)
            text = text or "none"
        reported[name.replace("_", " ")] = text
    return [{"fact": fact, "value": value} for fact, value in reported.items()]
