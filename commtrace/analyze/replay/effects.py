"""Effects of changes: step time by rank, blocked time by kind, and waits by wait state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.measures.wait_state import STATES
from commtrace.analyze.replay.build import recorded_replay
from commtrace.analyze.replay.graph import Replay
from commtrace.analyze.replay.outcome import steps_of
from commtrace.analyze.run.analysis import typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column
from commtrace.units import text_of_ranks

COLUMNS = (
    Column("of", str, "", "rank (time of its steps), kind (blocked time) or wait state (waits)"),
    Column("name", str, "", "the rank, the kind or the wait state"),
    Column("before_ns", float, "ns", "recorded, per steady step; of kinds, mean over ranks"),
    Column("after_ns", float, "ns", "the same with the changes", title="With the changes"),
    Column("saved_ns", float, "ns", "difference", title="Saves"),
)  # fmt: skip
RANK, KIND, WAIT_STATE = "rank", "kind", "wait state"
_TIMES = ["before_ns", "after_ns"]


def effects(basis: Frames, run: Frames, replay: Replay, samples: float) -> pd.DataFrame:
    """Return a row per rank, kind and wait state with its time per step before and after.

    Args:
        basis: The run that was replayed.
        run: The replayed run.
        replay: Its replay.
        samples: Samples of a step, as a multiple of those recorded; times are for as many.
    """
    before = _per_step(basis, basis, recorded_replay(basis))
    after = _per_step(basis, run, replay) / samples
    both = pd.concat({"before_ns": before, "after_ns": after}, axis=1).fillna(0.0)
    return _in_order(both)


def mean_effects(found: Sequence[tuple[pd.DataFrame, int]]) -> pd.DataFrame:
    """Return the mean of effects in parts of a run, each weighted by its number of steps."""
    total = sum(num for _, num in found) or 1
    keyed = [table.set_index(["of", "name"])[_TIMES] * num / total for table, num in found]
    return _in_order(pd.concat(keyed).groupby(level=[0, 1], sort=False).sum())


def _in_order(both: pd.DataFrame) -> pd.DataFrame:
    table = both.assign(saved_ns=both["before_ns"] - both["after_ns"])
    table = table.rename_axis(["of", "name"]).reset_index()
    place = table["of"].map([RANK, KIND, WAIT_STATE].index)
    # Ranks in their order, others by their time.
    within = np.where(table["of"] == RANK, np.arange(len(table)), -table["before_ns"])
    order = np.lexsort([within, place])
    return typed(table.iloc[order].reset_index(drop=True), COLUMNS)


def _per_step(basis: Frames, run: Frames, replay: Replay) -> pd.Series:
    """Return the times of a replayed run per steady step, by what they are of and its name."""
    steps = steps_of(basis, replay)
    lasted = (steps["end"] - steps["begin"]).groupby(steps["rank"]).median()
    of_ranks = pd.Series(
        lasted.to_numpy("float64"),
        index=pd.MultiIndex.from_product(
            [[RANK], [text_of_ranks([each]) for each in lasted.index]]
        ),
    )
    comm, num = run.comm, len(steps) or max(run.num_ranks, 1)
    counted = is_steady(run, comm["step"]) if len(steps) else comm["step"] == comm["step"]
    wait = arrivals(run)["wait_ns"]
    sums = {
        KIND: comm["blocked_ns"]
        .where(counted, 0)
        .clip(lower=0)
        .groupby(comm["kind"].astype(object)),
        WAIT_STATE: wait.where(counted, 0)
        .clip(lower=0)
        .groupby(comm["kind"].astype(object).map(STATES)),
    }
    others = {of: by.sum().astype("float64") / num for of, by in sums.items()}
    return pd.concat(
        [of_ranks, *(pd.concat({of: each}) for of, each in others.items() if len(each))]
    )
