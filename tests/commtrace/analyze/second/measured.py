"""Second computation of sums and ratios: the tables by kind, phase, module, operator, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.commtrace.analyze.by_hand import EVERYONE, NAMES, measures_of
from tests.commtrace.analyze.second.run import Run, known_ratio, ratio
from tests.commtrace.analyze.second.waited import overlap


def _facts_of(run: Run, call: Any) -> dict[str, Any]:
    group = run.groups.get(call.group)
    return call._asdict() | {
        "mesh_axis": group.mesh_axis if group else "",
        "group_size": group.size if group else -1,
    }


def flat(run: Run, keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row per value of the keys."""
    calls: dict[tuple[Any, ...], list[Any]] = {}
    for call in run.comm:
        known = _facts_of(run, call)
        calls.setdefault(tuple(known[key] for key in keys), []).append(call)
    return [
        dict(zip(keys, values, strict=True)) | measures_of(run.trace, group)
        for values, group in calls.items()
    ]


def _is_inside(module: str, path: str) -> bool:
    return path in ("", module) or module.startswith(f"{path}.")


def by_module(run: Run) -> list[dict[str, Any]]:
    """One row per module path, and per ancestor of a module."""
    calling = {call.module for call in run.comm}
    paths = {"" for _ in calling} | calling
    paths |= {path[:end] for path in calling for end, sign in enumerate(path) if sign == "."}
    classes = {each.module: each.module_class for each in run.ops + run.comm if each.module_class}
    found = []
    for path in paths:
        own = measures_of(run.trace, [call for call in run.comm if call.module == path])
        below = [call for call in run.comm if _is_inside(call.module, path)]
        sums = (
            "num_calls",
            "payload_bytes",
            "wire_bytes",
            "time_ns",
            "device_ns",
            "blocked_ns",
            "share",
        )
        known = {
            name: 0.0 if name in sums and path not in calling else own[name]
            for name in NAMES
            if name not in ("calls_per_step", "share_of_steps", "num_untimed")
        }
        found.append(
            {
                "module": path,
                "name": path.split(".")[-1],
                "depth": path.count(".") + 1 if path else 0,
                "module_class": classes.get(path, ""),
            }
            | measures_of(run.trace, below)
            | {f"own_{name}": value for name, value in known.items()}
        )
    return found


def by_step(run: Run) -> list[dict[str, Any]]:
    """Steps that were marked or have calls, and a row for everything outside of steps."""
    lasted: dict[int, float] = {}
    for step in run.steps:
        lasted[step.step] = lasted.get(step.step, 0.0) + (step.end_ns - step.start_ns)
    lasted[-1] = run.recorded_ns - sum(lasted.values())
    steps = {call.step for call in run.comm} | {step.step for step in run.steps}
    rows = overlap(run)
    found = []
    for step in steps:
        calls = [call for call in run.comm if call.step == step]
        measures = measures_of(run.trace, calls)
        duration = lasted[step] / run.num_ranks if step in lasted else math.nan
        measures["blocked_ns"] = _blocked_ns(calls, [row for row in rows if row["step"] == step])
        measures["blocked_ns"] /= run.num_ranks
        names = [name for name in NAMES if name not in ("calls_per_step", "share_of_steps")]
        found.append(
            {"step": step, "duration_ns": duration}
            | {name: measures[name] for name in names}
            | {"share": ratio(measures["blocked_ns"], duration)}
        )
    return found


def _blocked_ns(calls: list[Any], rows: list[dict[str, Any]]) -> float:
    """Time for which calls of a step blocked their ranks, of each at most the step's time."""
    found = math.nan
    for row in rows:
        own = [call for call in calls if call.rank == row["rank"] and call.blocked_ns >= 0]
        if own:
            blocked = max(row["exposed_ns"], 0)
            blocked += sum(call.blocked_ns for call in own if call.issue_ns < 0)
            most = row["duration_ns"] if row["duration_ns"] >= 0 else blocked
            found = (0.0 if math.isnan(found) else found) + min(blocked, most)
    return found


def _known_sum(values: list[int]) -> int:
    """Sum of the known values; -1 if there are values, but none is known."""
    known = [value for value in values if value >= 0]
    return sum(known) if known or not values else -1


def by_rank(run: Run) -> list[dict[str, Any]]:
    """Each rank's own sums, and the waits that it causes in others."""
    found = []
    run_pairs = list(zip(run.comm, run.waits, strict=True))
    pairs = [(call, wait) for call, wait in run_pairs if wait]
    for rank, row in run.ranks.items():
        own = [call for call in run.comm if call.rank == rank]
        sums = {
            name: _known_sum([getattr(call, name) for call in own])
            for name in ("payload_bytes", "wire_bytes", "blocked_ns")
        }
        waits = [wait[0] if wait else -1 for call, wait in run_pairs if call.rank == rank]
        caused = [wait for _, (wait, last) in pairs if last.rank == rank]
        together = [wait[1].rank == rank for call, wait in pairs
                    if call.rank == rank and call.kind in EVERYONE]  # fmt: skip
        found.append(
            {"rank": rank, "host": row.host, "num_calls": len(own)}
            | sums
            | {
                "num_untimed": sum(call.blocked_ns < 0 for call in own),
                "share": known_ratio(sums["blocked_ns"], row.end_ns - row.start_ns),
                "wait_ns": _known_sum(waits),
                "caused_wait_ns": sum(caused) if caused else min(_known_sum(waits), 0),
                "num_last": sum(together) if together or not own else -1,
                "last_share": ratio(sum(together), len(together)),
            }
        )
    return found
