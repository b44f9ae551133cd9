"""Exposed communication as a part of a steady step, and the part that waits for late ranks.

    |<------------------- step ------------------->|
    | compute | wait for rank 2 | transfer | compute |
              |<------- exposed ---------->|

Without steps, the parts are of the recorded time. Ranks and steps whose exposed time is unknown are
left out of both times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.measures import recorded_ns
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.measures.step_times import steps_of_calls
from commtrace.analyze.overlap.overlap import overlap
from commtrace.analyze.run.analysis import addable
from commtrace.analyze.run.cached_per_run import of_each_part, of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.waits.stragglers import stands_out


@dataclass(frozen=True, slots=True)
class ExposedShare:
    """Parts of the time of steady steps, over all ranks.

    Attributes:
        exposed: Exposed communication; nan if unknown.
        waiting: Waits for ranks that arrive late, at most `exposed`; nan if no wait is known.
        worst_rank: Rank that causes most of the waits; -1 if none stands out.
        caused: The waits for it as a part of all waits; nan without waits.
        step_ns: Median step time, mean over ranks; nan without steps.
        num_steps: Number of these steps; 0 if the parts are of the recorded time.
        num_calls: Calls in that time, of all ranks.
        num_timed: Those with a known exposed time.
        num_met: Those with a known wait.
    """

    exposed: float
    waiting: float
    worst_rank: int
    caused: float
    step_ns: float
    num_steps: int
    num_calls: int
    num_timed: int
    num_met: int


@of_run
def exposed_share(frames: Frames) -> ExposedShare:
    """Return the exposed part of steady steps, and the part of it that waits for late ranks."""
    table = overlap(frames)
    inside = table[table["step"] >= 0]
    rows = inside[is_steady(frames, inside["step"])] if len(inside) else table
    is_known = (rows["exposed_ns"] >= 0) & (rows["duration_ns"] >= 0)
    known = rows[is_known]
    lasted = rows[rows["duration_ns"] >= 0].groupby("step")["duration_ns"].mean()
    if len(inside):
        time_ns = float(known["duration_ns"].sum())
    else:
        time_ns = float(recorded_ns(frames).drop(rows["rank"][~is_known], errors="ignore").sum())
    exposed = known["exposed_ns"].sum() / time_ns if time_ns and len(known) else math.nan
    waits = _waits(frames, known)
    of_ranks = waits.groupby("last_rank")["wait_ns"].sum()
    total = float(of_ranks.sum())
    worst = int(of_ranks.index[int(of_ranks.argmax())]) if total > 0 else -1
    caused = float(of_ranks.max()) / total if total > 0 else math.nan
    return ExposedShare(
        exposed=exposed,
        waiting=min(total / time_ns, exposed) if time_ns and len(waits) else math.nan,
        worst_rank=worst if total > 0 and stands_out(caused, frames.num_ranks) else -1,
        caused=caused,
        step_ns=float(lasted.median()) if len(inside) else math.nan,
        num_steps=rows["step"].nunique() if len(inside) else 0,
        num_calls=int(rows["num_calls"].sum()),
        num_timed=int((known["num_calls"] - known["num_untimed"]).sum()),
        num_met=int(waits["num_calls"].sum()),
    )


def _waits(frames: Frames, known: pd.DataFrame) -> pd.DataFrame:
    """Return the waits in steps of ranks that are known, by the rank that is waited for."""
    waits = pd.concat(frames.by_ranks(_waits_of_part))
    keys = pd.MultiIndex.from_frame(known[["step", "rank"]])
    return waits[pd.MultiIndex.from_frame(waits[["step", "rank"]]).isin(keys)]


@of_each_part
def _waits_of_part(part: Frames) -> pd.DataFrame:
    """Return the sums of known waits, by `step rank last_rank`."""
    arrived = arrivals(part)
    calls = pd.DataFrame(
        {
            "step": np.asarray(steps_of_calls(part)),
            "rank": part.comm["rank"].to_numpy(),
            "last_rank": arrived["last_rank"].to_numpy(),
            "wait_ns": addable(arrived["wait_ns"]).to_numpy(),
        }
    )
    by = ["step", "rank", "last_rank"]
    met = calls[arrived["wait_ns"].to_numpy() >= 0].groupby(by)["wait_ns"]
    return met.agg(wait_ns="sum", num_calls="size").reset_index()
