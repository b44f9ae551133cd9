"""Communication by phase of training."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, SHOWN_MEASURES, table_by
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.schema import PHASES, Column

COLUMNS = (
    Column("phase", str, "", "forward, backward, recompute, optimizer or other"),
    *MEASURES,
)


def by_phase(frames: Frames) -> pd.DataFrame:
    """Return a row per phase with communication, in the order of a training step."""
    table = table_by(frames, COLUMNS)
    order = table["phase"].map({phase: place for place, phase in enumerate(PHASES)})
    return table.loc[order.sort_values(kind="stable").index].reset_index(drop=True)


BY_PHASE = Analysis(
    "by_phase",
    "By phase",
    "Which phases of training communicate?",
    by_phase,
    COLUMNS,
    topic="Where from",
    shown=f"phase {SHOWN_MEASURES} busbw_bytes_per_s",
)
