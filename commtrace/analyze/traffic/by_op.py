"""Communication by operator and kind of collective."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, SHOWN_MEASURES, table_by
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

COLUMNS = (
    Column("op", str, "", "operator that needed the call, empty if none did", title="Operator"),
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    *MEASURES,
)


def by_op(frames: Frames) -> pd.DataFrame:
    """Return a row per operator and kind, the longest blocked time first."""
    return table_by(frames, COLUMNS)


BY_OP = Analysis(
    "by_op",
    "By operator",
    "Which operators needed communication, and of what kind?",
    by_op,
    COLUMNS,
    topic="Where from",
    shown=f"op kind {SHOWN_MEASURES} busbw_bytes_per_s",
)
