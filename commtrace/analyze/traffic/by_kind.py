"""Communication by kind of collective."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, SHOWN_MEASURES, table_by
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.traffic.bandwidth import BUSBW_AFTER_ARRIVAL, busbw_after_arrival
from commtrace.schema import Column

_MEASURED = (Column("kind", str, "", "all_reduce, all_gather, ..."), *MEASURES)
COLUMNS = (*_MEASURED, BUSBW_AFTER_ARRIVAL)


def by_kind(frames: Frames) -> pd.DataFrame:
    """Return a row per kind, the longest blocked time first."""
    table = table_by(frames, _MEASURED)
    speeds = busbw_after_arrival(frames, "kind")
    return table.assign(**{BUSBW_AFTER_ARRIVAL.name: table["kind"].map(speeds).astype("float64")})


BY_KIND = Analysis(
    "by_kind",
    "By kind",
    "Which kinds of communication occur?",
    by_kind,
    COLUMNS,
    topic="What",
    shown=f"kind {SHOWN_MEASURES} algbw_bytes_per_s busbw_bytes_per_s",
)
