"""Flat tables by group, mesh axis, source line and region: one row per value of the key columns.

All of them share the measures of `measures`; `FLAT` lists them.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from commtrace.analyze.analysis import Analysis
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import MEASURES, table_by, with_group_facts
from commtrace.schema import Column

_GROUP = (
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it"),
    Column("group_size", int, "", "number of ranks; -1 unknown"),
)
_AXIS = (Column("mesh_axis", str, "", "axis of the DeviceMesh, empty for groups without one"),)
_SOURCE = (
    Column("source_file", str, "", "file of the user's line, empty if unknown"),
    Column("source_line", int, "", "line in that file"),
    Column("source_function", str, "", "function of the line"),
)
_REGION = (Column("region", str, "", "innermost user region, empty outside of any"),)


def _flat(name: str, title: str, question: str, keys: tuple[Column, ...]) -> Analysis:
    columns = (*keys, *MEASURES)
    return Analysis(name, title, question, _table(columns), columns)


def _table(columns: tuple[Column, ...]) -> Callable[[Frames], pd.DataFrame]:
    def table(frames: Frames) -> pd.DataFrame:
        """Return one row per value of the keys, the longest blocked time first."""
        return table_by(with_group_facts(frames), columns)

    return table


FLAT = (
    _flat("by_group", "By group", "Which process groups communicate?", _GROUP),
    _flat("by_axis", "By mesh axis", "Which axes of the mesh communicate?", _AXIS),
    _flat("by_source", "By source line", "Which lines of the program communicate?", _SOURCE),
    _flat("by_region", "By region", "Which of the user's regions communicate?", _REGION),
)
