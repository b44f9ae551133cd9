"""Time on the critical path by place: the work to shorten first."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.critical_path import facts_of_calls
from commtrace.analyze.replay.stretches import WORK, stretches
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

_BY = ["work", "kind", "mesh_axis", "module", "source_file", "source_line", "rank"]

COLUMNS = (
    Column("duration_ns", int, "ns",
           "time on the critical path, in steady steps if the run has any steps", title="Takes"),
    Column("share", float, "1", "the same as a fraction of the path in these steps"),
    Column("rank", int, "", "rank"),
    Column("work", str, "", f"{', '.join(WORK.values())}"),
    Column("kind", str, "", "kind of the call, or of the next call that host work leads to"),
    Column("module", str, "", "path of its innermost module"),
    Column("num_stretches", int, "", "number of stretches of the path", title="Stretches"),
    Column("max_duration_ns", int, "ns", "longest of them", title="Longest"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns its group", title="Axis"),
    Column("source_file", str, "", "file of the user's line that it is from", title="Source"),
    Column("source_line", int, "", "line in that file"),
)  # fmt: skip


def critical_share(frames: Frames) -> pd.DataFrame:
    """Return a row per sort of work, place and rank, the longest time on the path first."""
    frames = basis_of(frames)
    found = stretches(frames)
    if len(frames.timed_steps):
        found = found[is_steady(frames, found["step"]).to_numpy()]
    lasts = found["end"] - found["begin"]
    rows = found.assign(work=found["sort"].map(WORK), lasts=lasts)
    rows = rows.join(facts_of_calls(frames, found["call"]))
    table = rows.groupby(_BY)["lasts"].agg(
        duration_ns="sum", num_stretches="size", max_duration_ns="max"
    )
    table["share"] = table["duration_ns"] / (lasts.sum() or np.nan)
    table = table.reset_index()
    return typed(_ordered(table), COLUMNS)


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    ascending = [False, *([True] * len(_BY))]
    return table.sort_values(["duration_ns", *_BY], ascending=ascending, kind="stable")


CRITICAL_SHARE = Analysis(
    "critical_share",
    "Shares of the critical path",
    "Which work takes most of the critical path?",
    critical_share,
    COLUMNS,
    topic="When",
    shown="work kind mesh_axis module source_file rank duration_ns share num_stretches",
)
