"""A rank without a further call: ended, stopped, dead, or busy with something else."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, LOG, PROFILER
from commtrace.analyze.frame import Frames
from commtrace.units import text_of_duration

_NO_LATER = {
    FLIGHT_RECORDER: "has no later call in its dump",
    PROFILER: "has no later call in its profile",
    LOG: "printed no later call",
}
"""Words by the source of an import, which has no signs of life."""
_SILENT_NS = 3_000_000_000
_UNKNOWN = -1


def silence_of(frames: Frames, rank: int, others: Collection[int], common: pd.Series | None) -> str:
    """Describe a rank that made no further call, in words that follow its name.

    Args:
        frames: The run.
        rank: The rank.
        others: Ranks to compare its last sign of life with.
        common: The last call that it made like the others; None without one.
    """
    rows = frames.ranks
    own = rows[rows["rank"] == rank].iloc[0]
    since = int(common["issue_ns"]) if common is not None else int(own["start_ns"])
    if source := frames.run.get("imported_from"):
        return _NO_LATER.get(str(source), "has no later call in its file")
    if own["complete"]:
        after = text_of_duration(max(int(own["end_ns"]) - since, 0))
        return f"ended its recording {after} after that"
    alive = _last_sign(rows[rows["rank"] == rank])
    latest = _last_sign(rows[rows["rank"].isin(others)])
    if alive < 0 or latest < 0:
        return "did not close its recording"
    if latest - alive >= _SILENT_NS:
        return (
            f"gave no sign of life for the last {text_of_duration(latest - alive)} in which "
            "others did: it was stopped, or had died"
        )
    if int(own["alive_ns"]) < 0:
        return "did not close its recording"
    return "ran until the end, outside of communication"


def _last_sign(ranks: pd.DataFrame) -> int:
    return int(ranks[["alive_ns", "end_ns"]].max().max()) if len(ranks) else _UNKNOWN
