"""Load balance of the ranks in each step, in the metrics of POP.

A rank's useful time is the time in which it is not blocked; ranks whose useful time is unknown are
left out, and counted in `num_unknown`. With its mean and maximum over ranks,

    load balance             = mean / maximum
    communication efficiency = maximum / duration
    parallel efficiency      = load balance * communication efficiency = mean / duration
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.overlap.overlap import exposed_of_ranks
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import NOT_KNOWN
from commtrace.schema import Column

COLUMNS = (
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("duration_ns", int, "ns", "duration on the slowest rank", title="Duration"),
    Column("mean_useful_ns", float, "ns", "useful time; mean over ranks", title="Mean useful"),
    Column("max_useful_ns", int, "ns", "useful time of the busiest rank"),
    Column("busiest_rank", int, "", "that rank; the lowest in a tie"),
    Column("num_unknown", int, "", "ranks of unknown useful time", title="Ranks not timed"),
    Column("imbalance", float, "1", "maximum / mean - 1; 0 if balanced"),
    Column("load_balance", float, "1", "mean / maximum"),
    Column("communication_efficiency", float, "1", "maximum / duration", title="Comm. eff."),
    Column("parallel_efficiency", float, "1", "mean / duration", title="Parallel eff."),
)


def balance(frames: Frames) -> pd.DataFrame:
    """Return a row per step, in order."""
    parts = pd.concat(frames.by_ranks(_of_part))
    parts["useful"] = addable(parts["useful"])
    table = parts.groupby("step").agg(
        duration_ns=("duration_ns", "max"),
        num_unknown=("num_unknown", "sum"),
        num=("num", "sum"),
        useful=("useful", "sum"),
    )
    mean = table["mean_useful_ns"] = table["useful"] / table["num"].where(table["num"] > 0)
    ordered = parts.sort_values(["max_useful_ns", "busiest_rank"], ascending=[False, True])
    busiest = ordered.drop_duplicates("step").set_index("step")
    for name in ("max_useful_ns", "busiest_rank"):
        table[name] = busiest[name]
    most, duration = (table[name].astype("float64") for name in ("max_useful_ns", "duration_ns"))
    most = most.where(most >= 0)
    table["imbalance"] = most / mean.where(mean > 0) - 1
    table["load_balance"] = mean / most.where(most > 0)
    table["communication_efficiency"] = most / duration.where(duration > 0)
    table["parallel_efficiency"] = mean / duration.where(duration > 0)
    return typed(pd.DataFrame(table).reset_index(), COLUMNS)


def _of_part(frames: Frames) -> pd.DataFrame:
    """Return the useful time of some ranks by step: rank count, sum, and busiest rank."""
    ranks = exposed_of_ranks(frames)
    is_known = (ranks["duration_ns"] >= 0) & (ranks["exposed_ns"] >= 0)
    useful = (ranks["duration_ns"] - ranks["exposed_ns"]).clip(lower=0)
    rows = pd.DataFrame(
        {
            "step": ranks["step"],
            "duration_ns": ranks["duration_ns"],
            "num_unknown": (~is_known).astype("int64"),
            "num": is_known.astype("int64"),
            "useful": addable(useful.where(is_known, 0)),
            "max_useful_ns": useful.where(is_known, NOT_KNOWN),
            "busiest_rank": ranks["rank"].where(is_known, NOT_KNOWN),
        }
    ).sort_values(["max_useful_ns", "busiest_rank"], ascending=[False, True])
    by_step = rows.groupby("step")
    table = by_step[["num_unknown", "num", "useful"]].sum()
    table["duration_ns"] = by_step["duration_ns"].max()
    return table.join(by_step[["max_useful_ns", "busiest_rank"]].first()).reset_index()


BALANCE = Analysis(
    "balance",
    "Balance",
    "How evenly is work distributed over ranks?",
    balance,
    COLUMNS,
    topic="Who waits",
    shown=(
        "step duration_ns mean_useful_ns busiest_rank load_balance "
        "communication_efficiency parallel_efficiency num_unknown"
    ),
)
