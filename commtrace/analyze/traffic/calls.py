"""Single calls, with the values that the analyses derive for each."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.arrivals import COLUMNS as ARRIVALS
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.schema import COMM, Column

_ADDED = tuple(column for column in ARRIVALS if column.name not in ("rank", "id", "arrival_ns"))

COLUMNS = (
    *COMM,
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns the group", title="Axis"),
    *_ADDED,
)


def calls(frames: Frames) -> pd.DataFrame:
    """Return a row per call, with its mesh axis, its wait, and the rank that arrived last."""
    return typed(pd.concat(frames.by_ranks(_of_ranks)).sort_index(), COLUMNS)


def _of_ranks(frames: Frames) -> pd.DataFrame:
    table = frames.comm.astype({column.name: object for column in COMM if column.type is str})
    table["mesh_axis"] = mesh_axes(frames, table["group"])
    arrived = arrivals(frames)
    for column in _ADDED:
        table[column.name] = arrived[column.name]
    return table


CALLS = Analysis(
    "calls",
    "Single calls",
    "What is known about each single call?",
    calls,
    COLUMNS,
    topic="What",
    shown=(
        "rank id kind step phase module op mesh_axis payload_bytes blocked_ns wait_ns source_file"
    ),
)
