"""Second computation of steps that grow and of groups that are slow."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from tests.commtrace.analyze.second.moved import bandwidth, moved
from tests.commtrace.analyze.second.run import Run


def growing(run: Run) -> list[list[Any]]:
    """Calls of the last quarter of steps that take longer and longer."""
    lasted: dict[int, list[int]] = {}
    for each in run.steps:
        if run.is_steady(each.step) and min(each.start_ns, each.end_ns) >= 0:
            lasted.setdefault(each.step, []).append(max(each.end_ns - each.start_ns, 0))
    lasts = [mean(lasted[number]) for number in sorted(lasted)]
    if not 20 <= len(lasts) <= 100:
        return []
    pairs = [(a, b) for place, b in enumerate(lasts) for a in lasts[:place]]
    tau = sum((b > a) - (b < a) for a, b in pairs) / len(pairs)
    num = len(lasts) // 4
    first, last = median(lasts[:num]), median(lasts[-num:])
    chosen = sorted(lasted)[-num:]
    calls = [call for call in run.comm if call.step in chosen]
    return [calls] if tau >= 0.7 and first > 0 and last >= 1.25 * first and calls else []


def slow_groups(run: Run) -> list[list[Any]]:
    """Calls of groups that are slower than half of the median of equal groups."""
    rows = [row for row in bandwidth(run) if row["num_after_arrival"] and row["from_bytes"] > 0]
    alike: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        members = run.members(row["group"])
        hosts = {run.ranks[rank].host for rank in members if rank in run.ranks}
        size = run.groups[row["group"]].size if row["group"] in run.groups else -1
        if members:
            key = tuple(row[name] for name in ("kind", "from_bytes", "algorithm", "protocol"))
            alike.setdefault((*key, run.axis(row["group"]), size, len(hosts)), []).append(row)
    after = {(call.rank, call.id): time for call, _, _, time, _ in moved(run)}
    found = []
    for (kind, size, *_, num, _), own in alike.items():
        for row in own if len(own) >= 3 and size >= 1 << 16 else ():
            usual = median([each["median_busbw_bytes_per_s"] for each in own if each is not row])
            speed = row["median_busbw_bytes_per_s"]
            calls = [
                call
                for call in run.comm
                if (call.kind, call.group) == (kind, row["group"])
                and size <= call.payload_bytes < 2 * size
            ]
            lost = [
                after[call.rank, call.id] * (1 - speed / usual)
                for call in calls
                if call.step < 0 or run.is_steady(call.step)
            ]
            if (
                0 < speed < 0.5 * usual
                and row["best_busbw_bytes_per_s"] < usual
                and row["num_after_arrival"] >= 4 * num
                and sum(lost) >= max(0.05 * run.counted_ns, 1)
            ):
                found.append(calls)
    return found
