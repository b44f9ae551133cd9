"""Delays by changing ranks, and their cause.

`lateness` knows the reasons. Delays of ranks that had no core are not counted: they are a finding
of their own (`shared_cores`).
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.findings.finding import EVEN, Finding, Rule
from commtrace.analyze.findings.stragglers import (
    NEEDS,
    calls_of,
    changing,
    joined_sums,
    least_cost,
    sums_by_place,
    text_of_place,
    worst_place,
)
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.waits.lateness import COMPUTE, COPIES, WORK
from commtrace.analyze.waits.stragglers import stands_out
from commtrace.units import text_of_duration

_UNEVEN = (COMPUTE, COPIES)
"""Reasons that are work of the ranks; so is longer work outside of communication if it is known
that they had cores meanwhile.
"""
_BALANCE = (
    "Balance the load in each step: batches of equal length, experts of equal load, garbage "
    "collection at the same time."
)
_EITHER = (
    "If ranks have batches of different length, balance them; if they share cores, give each rank "
    "cores of its own."
)


def load_imbalance(frames: Frames) -> list[Finding]:
    """Delays caused by changing ranks that together are a large share of the run.

    Their cause is known if the late rank worked longer than the others before at least half of
    them. The first collective of a group is left out, since ranks start at different times.
    """
    sums = joined_sums(frames.by_ranks(_of_changing_ranks, fold=joined_sums))
    cost = float(sums["cost"].sum())
    if sums["rank"].nunique() < 2 or cost < max(least_cost(frames, "imbalance_share"), 1):
        return []
    squares = sum(frames.by_ranks(_squares))
    if cost**2 < frames.settings.threshold("straggler_spread") * squares:
        return []  # one call has most of it
    reasons = (*_UNEVEN, WORK) if census(frames).known["run_delay_ns"] else _UNEVEN
    by_reason = sums.groupby("reason", observed=True)["cost"].sum()
    uneven = by_reason[by_reason.index.isin(reasons)]
    is_known = 2 * uneven.sum() >= cost
    cause = "The cause is unknown"
    if is_known:
        cause = f"Mostly for {uneven.idxmax()}: it is not even among ranks"
    place, _ = worst_place(sums)
    return [
        Finding(
            title=f"Changing ranks delay all others, by "
            f"{text_of_duration(sums['delay_ns'].sum())}{_standing_out(frames, sums)}; mostly "
            f"before {text_of_place(place)}. {cause}.",
            advice=_BALANCE if is_known else _EITHER,
            calls=calls_of(frames, changing),
        )
    ]


def _standing_out(frames: Frames, sums: pd.DataFrame) -> str:
    """Name the ranks that cause more than others, in brackets; none of them may stand out."""
    share = sums.groupby("rank")["cost"].sum() / sums["cost"].sum()
    share = share.sort_values(ascending=False, kind="stable")
    most = share[stands_out(share, frames.num_ranks)].head(3)
    named = ", ".join(f"rank {rank} {part:.0%}" for rank, part in most.items())
    return f" ({named or 'no rank stands out'})"


def _of_changing_ranks(part: Frames) -> pd.DataFrame:
    return sums_by_place(changing(part))


def _squares(part: Frames) -> float:
    return float((changing(part)["cost"] ** 2).sum())


LOAD_IMBALANCE = Rule(
    "load_imbalance", "changing ranks that delay the others", load_imbalance, NEEDS, cure=EVEN
)
