"""Rows of the table of findings, and their savings as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from commtrace.analyze.findings.finding import FAULT, Finding, Rule
from commtrace.analyze.findings.savings import Saving
from commtrace.analyze.replay.words import between_text, percent
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import relative
from commtrace.units import known_note, text_of_bytes


def table_row(frames: Frames, rule: Rule, finding: Finding) -> dict[str, Any]:
    """Return a finding as a row of the table, without its saving of time."""
    num_ranks = max(frames.num_ranks, 1)
    calls, shared, cost = finding.calls, finding.calls.shared, finding.calls.cost_bytes
    if rule.concerns == FAULT or (math.isnan(cost) and not calls.num_counted):
        cost = 0.0
    return {
        "rule": rule.name,
        "concerns": rule.concerns,
        "title": finding.title,
        "advice": finding.advice,
        "module": finding.module or shared.get("module", ""),
        "op": shared.get("op", ""),
        "kind": shared.get("kind", ""),
        "mesh_axis": shared.get("mesh_axis", ""),
        "source": relative(frames, finding.calls.place),
        "num_calls": len(finding.rows) / num_ranks,
        "cost_bytes": cost / num_ranks,
        "evidence": ",".join(map("{}:{}".format, calls.first["rank"], calls.first["id"])),
    }


def saving_columns(frames: Frames, saving: Saving) -> dict[str, float]:
    """Return the columns of a row that a saving has."""
    return {
        "num_untimed": saving.num_untimed / max(frames.num_ranks, 1),
        "cost_ns": saving.least_ns,
        "most_ns": saving.most_ns,
        "error_ns": saving.error_ns,
        "share": saving.least_ns / saving.time_ns if saving.time_ns else math.nan,
    }


def savings(row: Mapping[Any, Any], num_ranks: int, share: str = "") -> str:
    """Return the possible savings of a row of the table: `1 ms (2.0% of the steps) and 5 kB`.

    A saving of 0 is left out. One that is unknown, or known for a part of the calls, is named.

    Args:
        row: The row.
        num_ranks: Number of ranks of the run.
        share: Text of the share of the run's time, shown behind the time.
    """
    num_calls, num_untimed = (round(row[name] * num_ranks) for name in ("num_calls", "num_untimed"))
    details = [text for text in (share, known_note(num_calls - num_untimed, num_calls)) if text]
    costs = {"time": row["most_ns"], "bytes": row["cost_bytes"]}
    texts = {
        "time": time_text(row) + (f" ({', '.join(details)})" if details else ""),
        "bytes": text_of_bytes(costs["bytes"]),
    }
    known = " and ".join(texts[name] for name, cost in costs.items() if cost > 0)
    unknown = " and ".join(name for name, cost in costs.items() if math.isnan(cost))
    if not unknown:
        return known
    return f"{known} ({unknown} not known)" if known else f"an unknown amount of {unknown}"


_LEAST_SHARE = 0.0005
"""Smaller shares would be shown as 0.0%."""


def share_text(row: Mapping[Any, Any], of_what: str) -> str:
    """Return the saved share of the time: `2.0% of the steps`, `2.0% to 9.0% of the steps`."""
    if not row["share"] >= _LEAST_SHARE:
        return ""
    shares = (row["share"], row["share"] * row["most_ns"] / row["cost_ns"])
    return f"{' to '.join(dict.fromkeys(map(percent, shares)))} {of_what}"


def time_text(row: Mapping[Any, Any]) -> str:
    """Return the time that a row of the table saves: `52 ms`, `2 to 9 ms` or `at most 9 ms`."""
    share = row["error_ns"] / row["most_ns"] if row["most_ns"] > 0 else math.nan
    return between_text(row["cost_ns"], row["most_ns"], share).replace("≤ ", "at most ")
