"""Second computation of bandwidth, call by call."""

from __future__ import annotations

from statistics import median
from typing import Any

from commtrace.collective_table import KINDS, busbw_factor
from tests.commtrace.analyze.second.run import Run

NAN = float("nan")


def _power(size: int) -> int:
    return size if size <= 0 else 1 << (size.bit_length() - 1)


def moved(run: Run) -> list[tuple[Any, Any, int, int, float]]:
    """Each call with its collective, its time, its time after the last arrival, and its factor.

    A time that is unknown is 0.
    """
    found = []
    for place, (call, number, last) in enumerate(
        zip(run.comm, run.numbers, run.lasts, strict=True)
    ):
        is_timed = call.complete_ns > call.issue_ns >= 0 and call.payload_bytes > 0
        on_device = max(call.device_ns, 0) if call.payload_bytes > 0 else 0
        time = call.complete_ns - call.issue_ns if is_timed else on_device
        after = 0
        if is_timed and last is not None:
            after = max(call.complete_ns - max(call.issue_ns, last.issue_ns), 0)
        group = run.groups.get(call.group)
        factor = 0.0
        if call.kind in KINDS and group is not None and group.size > 0:
            factor = busbw_factor(call.kind, group.size)
        found.append((call, number if number >= 0 else -1 - place, time, after, factor))
    return found


def _rate(size: float, time_ns: float) -> float:
    return size / (time_ns / 1e9) if size > 0 and time_ns > 0 else NAN


def busbw_after_arrival(run: Run, kind: str) -> float:
    calls = [each for each in moved(run) if each[0].kind == kind and each[3] > 0]
    return _rate(
        sum(call.payload_bytes * factor for call, *_, factor in calls),
        sum(after for *_, after, _ in calls),
    )


def bandwidth(run: Run) -> list[dict[str, Any]]:
    """Calls by kind, group, power of two and kernels."""
    cells: dict[tuple[Any, ...], list[tuple[Any, Any, int, int, float]]] = {}
    for each in moved(run):
        call = each[0]
        key = call.kind, call.group, _power(call.payload_bytes), call.algorithm, call.protocol
        cells.setdefault(key, []).append(each)
    found = []
    for key, calls in cells.items():
        timed = [each for each in calls if each[2] > 0]
        arrived = [each for each in calls if each[3] > 0]
        time, after = sum(each[2] for each in timed), sum(each[3] for each in arrived)
        collectives: dict[Any, list[Any]] = {}
        for each in arrived:
            collectives.setdefault(each[1], []).append(each)
        single = [
            _rate(sum(e[0].payload_bytes * e[4] for e in part), sum(e[3] for e in part))
            for part in collectives.values()
        ]
        single = [rate for rate in single if rate == rate]
        sizes = [each[0].payload_bytes for each in calls]
        found.append(
            dict(zip(("kind", "group", "from_bytes", "algorithm", "protocol"), key, strict=True))
            | {
                "mesh_axis": run.axis(key[1]),
                "num_calls": len(calls),
                "payload_bytes": sum(sizes) if min(sizes) >= 0 else -1,
                "num_timed": len(timed),
                "time_ns": time if timed else -1,
                "algbw_bytes_per_s": _rate(sum(e[0].payload_bytes for e in timed), time),
                "busbw_bytes_per_s": _rate(sum(e[0].payload_bytes * e[4] for e in timed), time),
                "num_after_arrival": len(arrived),
                "after_arrival_ns": after if arrived else -1,
                "algbw_after_arrival_bytes_per_s": _rate(
                    sum(e[0].payload_bytes for e in arrived), after
                ),
                "busbw_after_arrival_bytes_per_s": _rate(
                    sum(e[0].payload_bytes * e[4] for e in arrived), after
                ),
                "median_busbw_bytes_per_s": median(single) if single else NAN,
                "best_busbw_bytes_per_s": max(single, default=NAN),
            }
        )
    for row in found:
        best = [
            other["best_busbw_bytes_per_s"]
            for other in found
            if (other["kind"], other["group"]) == (row["kind"], row["group"])
        ]
        best = max((rate for rate in best if rate == rate), default=NAN)
        row["reference_bytes_per_s"] = best
        row["reference_is"] = "best" if best == best else ""
        row["share_of_reference"] = row["busbw_after_arrival_bytes_per_s"] / best
    return found
