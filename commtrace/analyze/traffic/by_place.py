"""Flat tables by kind, operator, group, mesh axis, source line, region and phase.

Each has a row per value of its key columns. All of them share the measures of `measures`; `FLAT`
lists them.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, SHOWN_MEASURES, table_by
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.traffic.bandwidth import BUSBW_AFTER_ARRIVAL, busbw_after_arrival
from commtrace.schema import PHASES, Column

_KIND = (Column("kind", str, "", "all_reduce, all_gather, ..."),)
_OP = (
    Column("op", str, "", "operator that needed the call, empty if none did", title="Operator"),
    *_KIND,
)
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
    Column(
        "via",
        str,
        "",
        "frame of a library between the line and the calls, empty if none",
        title="Via",
    ),
)
_REGION = (Column("region", str, "", "innermost user region, empty outside of any"),)
_PHASE = (Column("phase", str, "", "forward, backward, recompute, optimizer or other"),)

_Completion = Callable[[Frames, pd.DataFrame], pd.DataFrame]
"""Takes a run and its table by keys, and returns the table in its final form."""


def _flat(
    name: str,
    title: str,
    question: str,
    keys: tuple[Column, ...],
    *,
    topic: str,
    shown: str,
    rows: str = "value of these columns, the longest blocked time first",
    added: tuple[Column, ...] = (),
    completed: _Completion | None = None,
) -> Analysis:
    measured = (*keys, *MEASURES)

    def table(frames: Frames) -> pd.DataFrame:
        found = table_by(frames, measured)
        return found if completed is None else completed(frames, found)

    table.__doc__ = f"Return a row per {rows}."
    return Analysis(name, title, question, table, (*measured, *added), topic=topic, shown=shown)


def _with_busbw_after_arrival(frames: Frames, table: pd.DataFrame) -> pd.DataFrame:
    speeds = table["kind"].map(busbw_after_arrival(frames, "kind"))
    return table.assign(**{BUSBW_AFTER_ARRIVAL.name: speeds.astype("float64")})


def _in_order_of_phases(frames: Frames, table: pd.DataFrame) -> pd.DataFrame:
    order = table["phase"].map({phase: place for place, phase in enumerate(PHASES)})
    return table.loc[order.sort_values(kind="stable").index].reset_index(drop=True)


FLAT = (
    _flat(
        "by_kind",
        "By kind",
        "Which kinds of communication occur?",
        _KIND,
        topic="What",
        shown=f"kind {SHOWN_MEASURES} algbw_bytes_per_s busbw_bytes_per_s",
        rows="kind, the longest blocked time first",
        added=(BUSBW_AFTER_ARRIVAL,),
        completed=_with_busbw_after_arrival,
    ),
    _flat(
        "by_op",
        "By operator",
        "Which operators needed communication, and of what kind?",
        _OP,
        topic="Where from",
        shown=f"op kind {SHOWN_MEASURES} busbw_bytes_per_s",
        rows="operator and kind, the longest blocked time first",
    ),
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
        shown=(
            "source_file source_function via num_calls payload_bytes wire_bytes blocked_ns share"
        ),
    ),
    _flat(
        "by_region",
        "By region",
        "Which of the user's regions communicate?",
        _REGION,
        topic="Where from",
        shown=f"region {SHOWN_MEASURES} busbw_bytes_per_s",
    ),
    _flat(
        "by_phase",
        "By phase",
        "Which phases of training communicate?",
        _PHASE,
        topic="Where from",
        shown=f"phase {SHOWN_MEASURES} busbw_bytes_per_s",
        rows="phase with communication, in the order of a training step",
        completed=_in_order_of_phases,
    ),
)
