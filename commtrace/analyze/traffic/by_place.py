"""Flat tables by group, mesh axis, source line and region: one row per value of the key columns.

All of them share the measures of `measures`; `FLAT` lists them.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, SHOWN_MEASURES, table_by
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

_GROUP = (
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("group_size", int, "", "number of ranks; -1 unknown", title="Ranks"),
)
_AXIS = (
    Column(
        "mesh_axis", str, "", "axis of the DeviceMesh, empty for groups without one", title="Axis"
    ),
)
_SOURCE = (
    Column("source_file", str, "", "file of the user's line, empty if unknown", title="Source"),
    Column("source_line", int, "", "line in that file"),
    Column("source_function", str, "", "function of the line", title="Function"),
)
_REGION = (Column("region", str, "", "innermost user region, empty outside of any"),)


def _flat(
    name: str, title: str, question: str, keys: tuple[Column, ...], *, topic: str, shown: str
) -> Analysis:
    columns = (*keys, *MEASURES)
    return Analysis(name, title, question, _table(columns), columns, topic=topic, shown=shown)


def _table(columns: tuple[Column, ...]) -> Callable[[Frames], pd.DataFrame]:
    def table(frames: Frames) -> pd.DataFrame:
        """Return one row per value of the keys, the longest blocked time first."""
        return table_by(frames, columns)

    return table


FLAT = (
    _flat(
        "by_group",
        "By group",
        "Which process groups communicate?",
        _GROUP,
        topic="Between whom",
        shown=f"group mesh_axis group_size {SHOWN_MEASURES} busbw_bytes_per_s",
    ),
    _flat(
        "by_axis",
        "By mesh axis",
        "Which axes of the mesh communicate?",
        _AXIS,
        topic="Between whom",
        shown=f"mesh_axis {SHOWN_MEASURES} algbw_bytes_per_s busbw_bytes_per_s",
    ),
    _flat(
        "by_source",
        "By source line",
        "Which lines of the program communicate?",
        _SOURCE,
        topic="Where from",
        shown=("source_file source_function num_calls payload_bytes wire_bytes blocked_ns share"),
    ),
    _flat(
        "by_region",
        "By region",
        "Which of the user's regions communicate?",
        _REGION,
        topic="Where from",
        shown=f"region {SHOWN_MEASURES} busbw_bytes_per_s",
    ),
)
