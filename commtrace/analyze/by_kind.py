"""Communication by kind of collective."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import MEASURES, table_by
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
)
