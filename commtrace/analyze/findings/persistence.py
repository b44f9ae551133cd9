"""Causes of delays by changing ranks, from what the rank that is late depends on.

If the ranks' work differs, the rank with the most of it is late again and again: all through a
step whose batch is the longest on it, or at one place of the program in every step. Which rank is
late by chance, as where ranks share cores, depends on neither. So pairs of delays are compared,
weighted by the product of their costs: how often does one rank cause both?

    pairs                                           compared with pairs
    in the two halves of a step                     in the halves on both sides of a step's end
    at one place, in different blocks of steps      at different places, in different blocks

The pairs on the right are as far apart in time, so that a machine that is slow for a while makes no
difference. A part f of the delays that depends on the step, or on the place, makes f² more of the
pairs agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.findings.stragglers import PLACE, changing
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.measures import steps_ns

_BLOCKS = 16
"""Number of blocks of steps: every sixteenth step is in the same one."""
_SURE = 3.0
"""Standard errors above zero from which on a difference is no chance."""
_UPPER = 2.0
"""Standard errors above a difference up to which the true one may be."""
_LEAST_PAIRS = 9
"""Number of steps, or of blocks, that a comparison needs."""
_MOST_BY_CHANCE = 0.5
"""Part of the delays that may depend on the step or the place where none is said to."""
_LEAST_COVERED = 0.5
"""Part of the delays that must be in pairs to be judged."""


@dataclass(frozen=True, slots=True)
class Persistence:
    """Part of the delays that depends on the step or on the place.

    Attributes:
        part: The part; 0 if it cannot be told from chance.
        most: The most that it may be; 1 if that is unknown.
    """

    part: float
    most: float

    @property
    def is_chance(self) -> bool:
        """True if most of the delays depend on something else."""
        return not self.part and self.most < _MOST_BY_CHANCE


_UNKNOWN = Persistence(0.0, 1.0)


def by_step(frames: Frames) -> Persistence:
    """Return the part of the delays by changing ranks that depends on the step."""
    sums = _joined_by_half(frames.by_collectives(_by_half, fold=_joined_by_half))
    first, second = (
        sums[sums["is_second"] == half].drop(columns="is_second") for half in (False, True)
    )
    inside = _pairs(first, second)
    across = _pairs(first.assign(step=first["step"] - 1), second)
    halves = [half.groupby("step")["cost"].sum() for half in (first, second)]
    paired = np.minimum(*(half.reindex(inside.index) for half in halves)).sum()
    if 2 * paired < _LEAST_COVERED * sums["cost"].sum() or not across["all"].sum():
        return _UNKNOWN
    return _compared(inside, across["same"].sum() / across["all"].sum())


def by_place(frames: Frames) -> Persistence:
    """Return the part of the delays by changing ranks that depends on the place."""
    sums = _joined_by_block(frames.by_collectives(_by_block, fold=_joined_by_block))
    of_ranks = sums.groupby(["block", "rank"])["cost"].sum().reset_index()
    every, at_places = _pairs_of_blocks(of_ranks, []), _pairs_of_blocks(sums, PLACE)
    elsewhere = (every - at_places).sum()
    if not elsewhere["all"] > 0:
        return _UNKNOWN
    return _compared(at_places, elsewhere["same"] / elsewhere["all"])


def _compared(pairs: pd.DataFrame, usual: float) -> Persistence:
    """Return the part that explains how much more often pairs agree than usual ones."""
    pairs = pairs[pairs["all"] > 0]
    if len(pairs) < _LEAST_PAIRS or usual >= 1:
        return _UNKNOWN
    more = pairs["same"] - usual * pairs["all"]
    whole = pairs["all"].sum() * (1 - usual)
    found, error = more.sum() / whole, math.sqrt((more**2).sum()) / whole
    part = math.sqrt(min(found, 1.0)) if found > _SURE * error else 0.0
    return Persistence(part, math.sqrt(min(max(found + _UPPER * error, 0.0), 1.0)))


def _by_half(part: Frames) -> pd.DataFrame:
    """Return the cost of the delays of a part by step, half of the step, and rank."""
    events, steps = changing(part), part.whole.timed_steps
    middle = steps["start_ns"] + steps_ns(part.whole)[steps.index] / 2
    middles = middle.groupby(steps["step"]).mean()
    issue = part.comm.loc[events.index, "issue_ns"]
    is_second = issue > events["step"].map(middles)
    in_steps = events["step"].isin(middles.index)
    return _joined_by_half([events.assign(is_second=is_second)[in_steps]])


def _joined_by_half(parts: list[pd.DataFrame]) -> pd.DataFrame:
    by = ["step", "is_second", "rank"]
    return joined([part[[*by, "cost"]] for part in parts]).groupby(by)["cost"].sum().reset_index()


def _by_block(part: Frames) -> pd.DataFrame:
    """Return the cost of the delays of a part by block of steps, place and rank."""
    events = changing(part)
    return _joined_by_block([events.assign(block=events["step"] % _BLOCKS)])


def _joined_by_block(parts: list[pd.DataFrame]) -> pd.DataFrame:
    by = ["block", *PLACE, "rank"]
    rows = joined([part[[*by, "cost"]] for part in parts])
    return rows.groupby(by, observed=True)["cost"].sum().reset_index()


def _pairs(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs of delays of a step: `same`, those by one rank, and `all` of them."""
    both = first.merge(second, on=["step", "rank"])
    same = (both["cost_x"] * both["cost_y"]).groupby(both["step"]).sum()
    every = first.groupby("step")["cost"].sum() * second.groupby("step")["cost"].sum()
    every = every.dropna()
    return pd.DataFrame({"same": same.reindex(every.index, fill_value=0.0), "all": every})


def _pairs_of_blocks(sums: pd.DataFrame, at: list[str]) -> pd.DataFrame:
    """Return the pairs of delays in a block and in other blocks, at the same place."""
    keys = [sums[name] for name in at] or [pd.Series(0, index=sums.index)]

    def pairs(by: list[pd.Series]) -> pd.Series:
        own = sums["cost"].groupby([sums["block"], *by], observed=True).transform("sum")
        others = sums["cost"].groupby(by, observed=True).transform("sum") - own
        return (sums["cost"] * others).groupby(sums["block"]).sum()

    return pd.DataFrame({"same": pairs([*keys, sums["rank"]]), "all": pairs(keys)})
