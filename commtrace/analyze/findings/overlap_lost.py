"""Exposed communication that could run behind other work: see `overlap.overlap_lost`.

The losses at a line are a single finding per reason, whatever the modules. They have to recur: in
most of the steps, if there are several. Small buckets are left to rule `small_messages`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import DEPENDENCIES, DURATION
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.overlap.overlap_lost.chances import chances
from commtrace.analyze.overlap.overlap_lost.reasons import (
    BLOCKED_BY_RECEIVE,
    BUCKET_ORDER,
    BUCKET_TOO_SMALL,
    ISSUED_LATE,
    LOST,
    PREFETCH_LATE,
    WAITED_AT_ONCE,
)
from commtrace.analyze.overlap.overlap_lost.table import clause, overlap_lost
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.units import text_of_duration

_REPORTED = [name for name in LOST if name != BUCKET_TOO_SMALL]
_BY = ["reason", "kind", "mesh_axis", "phase", "source_file", "source_line"]
_CURES = dict.fromkeys(
    [ISSUED_LATE, WAITED_AT_ONCE, BLOCKED_BY_RECEIVE, BUCKET_ORDER, PREFETCH_LATE], "overlap"
)
"""Reasons of calls that could be issued earlier, or waited for later, as they are."""
_LEAST_STEPS = 0.5
"""Part of the steps in which a loss recurs."""


def overlap_losses(frames: Frames) -> list[Finding]:
    """Reasons by which a line loses a part of the steps' time, if any."""
    table, found = overlap_lost(frames), selected(frames, _lost)
    table = table[table["reason"].isin(_REPORTED) & (table["could_hide_ns"] > 0)]
    least_ns = frames.settings.threshold("overlap_share") * counted_ns(frames)
    lost_ns = table.groupby(_BY)["could_hide_ns"].sum() * max(frames.num_ranks, 1)
    if not (lost_ns >= least_ns).any():
        return []
    rows = {key: of_key for key, of_key in table.groupby(_BY)}
    most_steps = len(frames.steps[["rank", "step"]].drop_duplicates())
    return [
        Finding(
            title=_title(frames, rows[key]),
            advice=LOST[str(key[0])].advice,
            calls=calls,
            cure=_CURES.get(str(key[0]), ""),
        )
        for key, calls in found
        if calls.lost_ns >= least_ns and calls.share >= _LEAST_STEPS * most_steps
    ]


def _lost(part: Frames) -> Selected:
    """Return the calls that lost overlap; their share is the number of steps that have some."""
    calls = chances(part)
    calls = calls[calls["reason"].isin(_REPORTED) & (calls["could"] > 0)]
    comm = part.comm.loc[calls.index]
    comm = comm[comm["kind"] != "barrier"].assign(mesh_axis=mesh_axes(part, comm["group"]))
    if len(part.whole.steps):
        comm = comm[comm["step"] >= 0]
    by = [calls["reason"][comm.index], *(comm[name].astype(object) for name in _BY[1:])]
    return {
        key: calls_in(
            part,
            rows,
            cost_bytes=0.0,
            lost_ns=calls["could"],
            share=float(len(rows[["rank", "step"]].drop_duplicates())),
        )
        for key, rows in comm.groupby(by)
    }


def _title(frames: Frames, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    steps = max(frames.steps["step"].nunique(), 1)
    each = text_of_duration(rows["could_hide_ns"].sum() / steps)
    per = " per step" if len(frames.steps) else ""
    modules = list(dict.fromkeys(name for name in rows["module"] if name))
    places = ", ".join(modules[:3]) + (f" and {len(modules) - 3} more" if modules[3:] else "")
    where = f" in {first['phase'] or 'other'}" + (f" of {places}" if places else "")
    times = (_mean(rows, name) for name in ("early_ns", "slack_ns"))
    behind = f"behind {first['behind']}" if first["behind"] else "behind other work"
    return (
        f"{first['kind']}{where}, {clause(str(first['reason']), *times)}: {each}{per} exposed, "
        f"which could run {behind}."
    )


def _mean(rows: pd.DataFrame, name: str) -> float:
    known = rows[rows[name].notna()]
    return float(np.average(known[name], weights=known["num_calls"])) if len(known) else np.nan


OVERLAP = Rule(
    "overlap_lost",
    "communication that could be hidden behind other work",
    overlap_losses,
    (DURATION, DEPENDENCIES),
)
