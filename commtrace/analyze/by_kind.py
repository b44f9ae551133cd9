"""Communication by kind of collective."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import MEASURES, SHOWN_MEASURES, table_by
from commtrace.schema import Column

COLUMNS = (Column("kind", str, "", "all_reduce, all_gather, ..."), *MEASURES)


def by_kind(frames: Frames) -> pd.DataFrame:
    """Return one row per kind, the longest blocked time first."""
    return table_by(frames, COLUMNS)


BY_KIND = Analysis(
    "by_kind",
    "By kind",
    "Which kinds of communication occur?",
    by_kind,
    COLUMNS,
    topic="What",
    shown=f"kind {SHOWN_MEASURES} algbw_bytes_per_s busbw_bytes_per_s",
)
