"""Load balance of the ranks in each step, in the metrics of POP.

A rank's useful time is the time in which it is not blocked; ranks of which it is unknown are left
out, and counted in `num_unknown`. With its mean and maximum over ranks,

    load balance             = mean / maximum
    communication efficiency = maximum / duration
    parallel efficiency      = load balance * communication efficiency = mean / duration
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.frame import Frames
from commtrace.analyze.known import NOT_KNOWN
from commtrace.analyze.overlap import overlap
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
    """Return one row per step, in order."""
    ranks = overlap(frames)
    is_known = (ranks["duration_ns"] >= 0) & (ranks["exposed_ns"] >= 0)
    ranks["useful"] = (ranks["duration_ns"] - ranks["exposed_ns"]).clip(lower=0)
    ordered = ranks[is_known].sort_values(["useful", "rank"], ascending=[False, True])
    table = (
        ranks.assign(unknown=~is_known)
        .groupby("step")
        .agg(duration_ns=("duration_ns", "max"), num_unknown=("unknown", "sum"))
    )
    useful = ordered.groupby("step").agg(mean=("useful", "mean"), rank=("rank", "first"))
    mean = table["mean_useful_ns"] = useful["mean"].reindex(table.index).astype("float64")
    # The highest as an integer, which a column with nan could not hold exactly.
    highest = ordered.groupby("step")["useful"].max()
    table["max_useful_ns"] = highest.reindex(table.index, fill_value=NOT_KNOWN)
    table["busiest_rank"] = useful["rank"].reindex(table.index, fill_value=NOT_KNOWN)
    most, duration = (table[name].astype("float64") for name in ("max_useful_ns", "duration_ns"))
    most = most.where(most >= 0)
    table["imbalance"] = most / mean.where(mean > 0) - 1
    table["load_balance"] = mean / most.where(most > 0)
    table["communication_efficiency"] = most / duration.where(duration > 0)
    table["parallel_efficiency"] = mean / duration.where(duration > 0)
    return typed(pd.DataFrame(table).reset_index(), COLUMNS)


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
