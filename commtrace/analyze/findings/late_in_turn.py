"""Delays by changing ranks: of ranks whose work differs, or of ranks that are late by chance.

Even work would save the part of the delays that depends on the step or on the place
(`findings.persistence`), and nothing if none does: ranks that share cores, or a machine with other
programs, are late in turn whatever they work.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from commtrace.analyze.balance import balance
from commtrace.analyze.findings.finding import Finding, Rule
from commtrace.analyze.findings.persistence import Persistence, by_place, by_step
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
from commtrace.analyze.frame import Frames
from commtrace.analyze.steady_steps import is_steady
from commtrace.analyze.stragglers import stands_out
from commtrace.units import text_of_duration

_LEAST_STEPS = 9
"""Number of steady steps below which nothing is said to change, or not to change, with them."""

_OF_STEP = "All through a step it is mostly the same rank: the ranks' work in a step differs"
_OF_PLACE = "At one place it is mostly the same rank, in all steps: what ranks do before it differs"
_BY_CHANCE = (
    "Which rank is late depends neither on the step nor on the place: their work is no cause of it"
)
_UNKNOWN = "The cause is unknown: {}"
_ADVICE = {
    _OF_STEP: "Balance the load in each step: batches of equal length, experts of equal load, "
    "garbage collection at the same time.",
    _OF_PLACE: "Give ranks equal work before that place, or leave out the communication between "
    "the places at which different ranks work longer.",
    _BY_CHANCE: "Ranks that are late in turn often share cores, or the machine has other work: "
    "give each rank cores of its own, or communicate less often.",
    _UNKNOWN: "If ranks have batches of different length, balance them; if they share cores, give "
    "each rank cores of its own.",
}


def load_imbalance(frames: Frames) -> list[Finding]:
    """Delays caused by changing ranks that together are a large share of the run.

    The saving is the part of them that depends on the step or the place, so that even work would
    save it; 0 if the rank that is late changes by chance, as on any busy machine. If the delays of
    a step are few, the cause is unknown; even work saves at most what the busiest rank works longer
    than the mean. In a few steps, that is unknown, too. The first collective of a group is left
    out, since ranks start at different times.
    """
    sums = joined_sums(frames.by_collectives(_of_changing_ranks, fold=joined_sums))
    cost = float(sums["cost"].sum())
    if sums["rank"].nunique() < 2 or cost < max(least_cost(frames, "imbalance_share"), 1):
        return []
    squares = sum(frames.by_collectives(_squares))
    if cost**2 < frames.settings.threshold("straggler_spread") * squares:
        return []  # one call has most of it
    cause, saved, detail = _cause(frames, cost)
    place, _ = worst_place(sums)
    delay = text_of_duration(sums["delay_ns"].sum())
    return [
        Finding(
            title=f"Changing ranks delay all others, by {delay}"
            f"{_standing_out(frames, sums, cost)}; mostly before {text_of_place(place)}. "
            f"{cause.format(detail)}.",
            advice=_ADVICE[cause],
            calls=calls_of(frames, saved, (changing,)),
        )
    ]


def _cause(frames: Frames, cost: float) -> tuple[str, float, str]:
    """Return the cause of delays, what even work would save of their cost, and what is unknown."""
    steps = frames.steps["step"]
    if steps[is_steady(frames, steps)].nunique() < _LEAST_STEPS:
        return _UNKNOWN, math.nan, "there are too few steps to compare"
    found: dict[str, Persistence] = {_OF_STEP: by_step(frames), _OF_PLACE: by_place(frames)}
    cause = max(found, key=lambda each: found[each].part)
    if found[cause].part:
        return cause, found[cause].part * cost, ""
    if all(each.is_chance for each in found.values()):
        return _BY_CHANCE, 0.0, ""
    most = max(each.most for each in found.values()) * cost
    most = float(np.fmin(most, _uneven_ns(frames)))
    return _UNKNOWN, most, "the delays of a step are too few, or too much alike, to compare"


def _standing_out(frames: Frames, sums: pd.DataFrame, cost: float) -> str:
    """Name the ranks that cause more than others, in brackets; none of them may stand out."""
    share = (sums.groupby("rank")["cost"].sum() / cost).sort_values(ascending=False, kind="stable")
    most = share[stands_out(share, frames.num_ranks)].head(3)
    named = ", ".join(f"rank {rank} {part:.0%}" for rank, part in most.items())
    return f" ({named or 'no rank stands out'})"


def _uneven_ns(frames: Frames) -> float:
    """Return the time by which the busiest rank of each step works longer than the mean, summed
    over the steady steps and ranks; nan if unknown.
    """
    table = balance(frames)
    steps = table[is_steady(frames, table["step"])]
    longer = (steps["max_useful_ns"] - steps["mean_useful_ns"]).where(steps["num_unknown"] == 0)
    return float(longer.clip(lower=0).sum(min_count=1)) * frames.num_ranks


def _of_changing_ranks(part: Frames) -> pd.DataFrame:
    return sums_by_place(changing(part))


def _squares(part: Frames) -> float:
    return float((changing(part)["cost"] ** 2).sum())


LOAD_IMBALANCE = Rule(
    "load_imbalance", "changing ranks that delay the others", load_imbalance, NEEDS
)
