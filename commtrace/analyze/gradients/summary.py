"""Table `gradients` in a few lines: values that were reduced alike share a line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from commtrace.units import counted, text_of_ranks

_ALIKE = ["is_fault", "state", "what", "reduced_over", "num_contributions", "expected", "factor"]


@dataclass(frozen=True, slots=True)
class Line:
    """Values that are reduced alike.

    Attributes:
        state: right, missing, scaled or unknown.
        is_fault: they are wrong for certain.
        text: what they are, over which ranks they are reduced, and with which factor.
    """

    state: str
    is_fault: bool
    text: str


def summary(table: pd.DataFrame) -> list[Line]:
    """Return table `gradients` in lines, faults first."""
    if table.empty:
        return []
    rows = table.assign(
        expected=[f"{value:.3g}" for value in table["expected_scale"]],
        factor=[f"{value:.3g}" for value in table["scale"]],
    )
    grouped = rows.groupby(_ALIKE, sort=False)
    lines = [_line(own) for _, own in grouped]
    return sorted(lines, key=lambda line: (not line.is_fault, line.state == "right"))


def _line(rows: pd.DataFrame) -> Line:
    first = rows.iloc[0]
    names = list(dict.fromkeys(rows["name"]))
    steps = sorted(set(rows["step"].tolist()))
    when = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]}"
    if first["what"] != "gradient":
        name = f" {names[0]}" if names[0] else ""
        text = f"{first['what']}{name}, {when}: {first['explanation']}"
        return Line(first["state"], bool(first["is_fault"]), text)
    named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    what = f"{counted(len(names), 'gradient')}, {when}"
    if first["state"] in ("unknown", "mixed") or math.isnan(first["scale"]):
        text = f"{what}: {first['explanation']} ({named})"
        return Line(first["state"], bool(first["is_fault"]), text)
    ranks = [int(rank) for rank in str(first["ranks"]).split(",") if rank]
    over = f"over {first['reduced_over']}" if first["reduced_over"] else "unreduced"
    if first["state"] == "missing":
        text = f"{what}, on {text_of_ranks(ranks)}: {first['explanation']} ({named})"
    else:
        contributions = counted(int(first["num_contributions"]), "contribution")
        verdict = (
            f"factor {first['factor']}"
            if first["state"] == "right"
            else f"factor {first['factor']} instead of {first['expected']}"
        )
        text = f"{what}: the sum {over} of {contributions}, {verdict} ({named})"
    return Line(first["state"], bool(first["is_fault"]), text)
