"""Second computation of the difference of two runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.commtrace.analyze.second.run import Run

_SIZES = ("payload_bytes", "wire_bytes", "blocked_ns")


def diff(before: Run, after: Run) -> dict[tuple[str, ...], dict[str, Any]]:
    """Means per rank of each place in both runs, per step if both have steps; nan if not known."""
    per_step = bool(before.steps) and bool(after.steps)
    first, second = _by_place(before, per_step), _by_place(after, per_step)
    nothing = dict.fromkeys(("calls", *_SIZES), 0.0)
    found = {}
    for place in first.keys() | second.keys():
        old, new = first.get(place, nothing), second.get(place, nothing)
        row: dict[str, Any] = {}
        for name in nothing:
            row[f"{name}_before"], row[f"{name}_after"] = old[name], new[name]
            is_equal_part = _part(old, name) == pytest.approx(_part(new, name))
            row[f"{name}_change"] = new[name] - old[name] if is_equal_part else math.nan
        changes = [row[f"{name}_change"] for name in ("calls", "payload_bytes", "wire_bytes")]
        moved = max(abs(change) for change in changes if not math.isnan(change))
        row["change"] = (
            "added" if place not in first
            else "removed" if place not in second
            else "changed" if moved > 1e-9
            else "same"
        )  # fmt: skip
        found[place] = row
    return found


def _part(cell: dict[str, float], name: str) -> float:
    """Part of a place's calls whose size or time is known."""
    return (
        cell.get(f"known {name}", 0.0) / cell["calls"] if cell["calls"] and name in _SIZES else 1.0
    )


def _by_place(run: Run, per_step: bool) -> dict[tuple[str, ...], dict[str, float]]:
    steps = {step.step for step in run.steps}
    num_steps = len(steps) or 1
    num_steady = sum(run.is_steady(step) for step in steps) or 1
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for call in run.comm:
        in_step = per_step and call.step >= 0
        place = (
            "step" if in_step else "run",
            call.module,
            call.op,
            call.kind,
            run.axis(call.group) or call.group,
            call.phase,
        )
        cell = found.setdefault(place, {"calls": 0.0, **dict.fromkeys(_SIZES, math.nan)})
        share = 1 / run.num_ranks / (num_steps if in_step else 1)
        cell["calls"] += share
        of_time = share
        if in_step:
            of_time = run.is_steady(call.step) * share * num_steps / num_steady
        for name in _SIZES:
            value = getattr(call, name)
            if value >= 0:
                added = value * (of_time if name == "blocked_ns" else share)
                cell[name] = (0.0 if math.isnan(cell[name]) else cell[name]) + added
                cell[f"known {name}"] = cell.get(f"known {name}", 0.0) + share
    return found
