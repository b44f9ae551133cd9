"""Stragglers: a rank that is always late, and a rank that stalled once.

The cost of a delay is the time in which all others waited (`delayed_calls` of
`commtrace.analyze.waits.stragglers`), on each of the ranks that waited. If n ranks behave alike,
each causes 1/n of all delays.
A rank counts as late if its odds are `straggler_ratio` times as high and its delays are spread over
several calls. The thresholds are settings (`commtrace.settings.THRESHOLDS`). Other delays are
caused by changing ranks (`late_in_turn`) or ranks without a core (`shared_cores`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import USUAL, Evidence, Finding, Rule, calls_in
from commtrace.analyze.findings.needs import ALIGNMENT, DURATION, STEPS, WAITS, clock_error_ns
from commtrace.analyze.measures.arrivals import NEEDS_EVERYONE
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.steady_steps import is_counted, is_steady
from commtrace.analyze.replay.work import LEAST_STEPS
from commtrace.analyze.run.cached_per_run import cached_per_run, of_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.waits.lateness import NO_CORE
from commtrace.analyze.waits.stragglers import delayed_calls
from commtrace.units import text_of_duration

PLACE = ["kind", "phase", "module", "source_file", "source_line"]
_SUMS = ["num", "cost", "delay_ns", "longer", "worked", "others_worked", "known_ns"]


def stragglers(frames: Frames) -> list[Finding]:
    """Ranks that cause most of the delay, in several calls, at a significant share of the run."""
    late = _costs(frames).late_ranks
    if not late:
        return []
    sums = joined_sums(frames.by_ranks(_of_late_ranks, fold=joined_sums))
    of_ranks = [sums[sums["rank"] == rank] for rank in late]
    num_steps = frames.timed_steps["step"].nunique()
    found = []
    for rank, own in zip(late, of_ranks, strict=True):
        place, worst = worst_place(own)
        calls = calls_of(frames, _at_place, rank, place)
        part = worst["delay_ns"].sum() / own["delay_ns"].sum()
        found.append(
            Finding(
                title=f"Rank {rank} delays the other ranks, by "
                f"{text_of_duration(own['delay_ns'].sum())} in {int(own['num'].sum()):,} calls; "
                f"{part:.0%} of it before {text_of_place(place)}{_because(worst)}.",
                advice="Check what only that rank does before that call (data loading, logging, an "
                "uneven shard), and its machine.",
                calls=calls,
                # In few steps, it cannot be told what a rank usually does.
                cure=USUAL if 0 < num_steps < LEAST_STEPS else None,
            )
        )
    return found


def stalls(frames: Frames) -> list[Finding]:
    """Delays far above the median, by ranks that are not always late, after the first step."""
    stalled = joined(frames.by_ranks(_stalled))
    stalled = stalled.sort_values(["cost", "rank", "id"], ascending=[False, True, True])
    return [
        Finding(
            title=f"Rank {rank} stalled the other ranks {_times(len(own))}, for "
            f"{text_of_duration(own['delay_ns'].sum())}: before "
            f"{text_of_place(own.iloc[0][PLACE])}, in step {own['step'].iloc[0]}"
            f"{_because(sums_by_place(own.head(1)))}.",
            advice="Check what that rank did at that time: a checkpoint, an evaluation, garbage "
            "collection, slow file access.",
            calls=calls_of(frames, _among, frozenset(own.index)),
        )
        for rank, own in stalled.groupby("rank")
    ]


def _delays(part: Frames) -> pd.DataFrame:
    """Return the delayed collectives that a rank is blamed for.

    Nobody is blamed for a delay for want of a core; nor, if the run states when ranks had none, for
    a delay without a reason.
    """
    events = _all_delays(part)
    if census(part.whole).known["run_delay_ns"]:
        events = events[events["reason"] != ""]
    return events[events["reason"] != NO_CORE]


@cached_per_run
def _all_delays(part: Frames) -> pd.DataFrame:
    """Return the delayed collectives, within steps if these are marked, with their cost.

    A delay within the error of the alignment of clocks may not have occurred. Those of a step that
    is left out count as stalls only.
    """
    events = delayed_calls(part)
    events = events[events["delay_ns"] > clock_error_ns(part)]
    if len(part.steps):
        first = part.whole.steps["step"].min()
        is_warm_up = (events["step"] == first) & ~is_steady(part, events["step"])
        events = events[(events["step"] >= 0) & ~is_warm_up]
    # In floats, since the squares in `_late_ranks` could overflow 64 bits.
    events = events.assign(cost=events["delay_ns"].astype("float64") * (events["num_ranks"] - 1))
    events = events[events["kind"].isin(NEEDS_EVERYONE)]
    return events.assign(is_counted=is_counted(part, events["step"]))


@dataclass(frozen=True, slots=True)
class _Costs:
    """Facts about the delays of a run.

    Attributes:
        late_ranks: Ranks that are always late.
        usual_ns: Median of all delays; nan without any.
    """

    late_ranks: list[int]
    usual_ns: float


@of_run
def _costs(frames: Frames) -> _Costs:
    by_rank, delays = zip(*frames.by_ranks(_costs_of_part), strict=True)
    every = np.concatenate(delays)
    late = _late_ranks(frames, pd.concat(by_rank).groupby("rank").sum())
    return _Costs(late, float(np.median(every)) if len(every) else math.nan)


def _costs_of_part(part: Frames) -> tuple[pd.DataFrame, np.ndarray]:
    """Return cost and its squares by rank, in sum; and each delay of anybody, in 8 bytes."""
    events, every = (each[each["is_counted"]] for each in (_delays(part), _all_delays(part)))
    costs = pd.DataFrame({"cost": events["cost"], "squares": events["cost"] ** 2})
    return costs.groupby(events["rank"]).sum(), every["delay_ns"].to_numpy()


def _late_ranks(frames: Frames, costs: pd.DataFrame) -> list[int]:
    total, num_ranks = costs["cost"].sum(), frames.num_ranks
    least = max(least_cost(frames, "straggler_share"), 1)
    odds, least_spread = map(frames.settings.threshold, ("straggler_ratio", "straggler_spread"))
    # The effective number of calls: n if all n cost the same, and 1 if a single one dominates.
    spread = costs["cost"] ** 2 / costs["squares"]
    # Without a division, since the others may cause no delay at all.
    is_most = costs["cost"] * (num_ranks - 1) >= odds * (total - costs["cost"])
    return costs.index[(costs["cost"] >= least) & is_most & (spread >= least_spread)].tolist()


def _is_of_late_rank(part: Frames) -> pd.Series:
    return _delays(part)["rank"].isin(_costs(part).late_ranks)


@cached_per_run
def _is_stalled(part: Frames) -> pd.Series:
    """Return a mask of delays that stand out.

    The first step and each group's first call are excluded.
    """
    events = _delays(part)
    first = part.steps["step"].min() if part.steps["step"].nunique() > 1 else -1
    return (
        (events["number"] > 0)
        & (events["step"] != first)
        & (events["cost"] >= least_cost(part.whole, "straggler_share"))
        & (events["delay_ns"] >= part.settings.threshold("stall_factor") * _costs(part).usual_ns)
        & ~_is_of_late_rank(part)
    )


def _stalled(part: Frames) -> pd.DataFrame:
    return _delays(part)[_is_stalled(part)]


def changing(part: Frames) -> pd.DataFrame:
    """Return the delays by ranks that are not always late which do not stand out."""
    events = _delays(part)
    is_usual = events["is_counted"] & (events["number"] > 0)
    return events[is_usual & ~_is_of_late_rank(part) & ~_is_stalled(part)]


def _at_place(part: Frames, rank: int, place: tuple[Any, ...]) -> pd.DataFrame:
    """Return the delays that a rank causes at a place."""
    events = _delays(part)
    events = events[(events["rank"] == rank) & events["is_counted"]]
    for name, value in zip(PLACE, place, strict=True):
        events = events[events[name] == value]
    return events


def _among(part: Frames, rows: frozenset[int]) -> pd.DataFrame:
    """Return the delays of some calls."""
    return _delays(part)[_delays(part).index.isin(rows)]


def _of_late_ranks(part: Frames) -> pd.DataFrame:
    events = _delays(part)
    return sums_by_place(events[_is_of_late_rank(part) & events["is_counted"]])


def sums_by_place(events: pd.DataFrame) -> pd.DataFrame:
    """Return sums by rank, place and reason; times are weighted by the delay."""
    delay = events["delay_ns"].astype("float64")
    known = delay.where(events["work_ns"].notna() & events["others_work_ns"].notna())
    return _sums_of(
        events[["rank", *PLACE, "reason", "cost"]].assign(
            num=1,
            delay_ns=delay,
            longer=events["excess_ns"] * delay,
            worked=events["work_ns"] * known,
            others_worked=events["others_work_ns"] * known,
            known_ns=known,
        )
    )


def joined_sums(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the sums of parts, by rank, place and reason."""
    return _sums_of(joined(parts))


def _sums_of(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["rank", *PLACE, "reason"]
    return rows.groupby(by, observed=True)[_SUMS].sum().reset_index()


def calls_of(frames: Frames, select: Callable[..., pd.DataFrame], *args: Any) -> Evidence:
    """Return the calls of the stragglers of the delays that `select(part, *args)` returns."""
    of_parts = frames.by_ranks(_calls_of_part, select, *args)
    return reduce(Evidence.joined, filter(None, of_parts))


def _calls_of_part(
    part: Frames, select: Callable[..., pd.DataFrame], *args: Any
) -> Evidence | None:
    rows = select(part, *args).index
    return calls_in(part, part.comm.loc[rows], cost_bytes=0.0) if len(rows) else None


def least_cost(frames: Frames, share: str) -> float:
    """Return the cost that a setting, a share of the steps' time, requires of a finding."""
    return frames.settings.threshold(share) * counted_ns(frames)


def worst_place(sums: pd.DataFrame) -> tuple[tuple[Any, ...], pd.DataFrame]:
    """Return the costliest place, and its sums; the first in order of the places in a tie."""
    cost = sums.astype(dict.fromkeys(PLACE[:-1], object)).groupby(PLACE)["cost"].sum()
    place: Any = cost.idxmax()
    is_worst = pd.Series(True, index=sums.index)
    for name, value in zip(PLACE, place, strict=True):
        is_worst &= sums[name] == value
    return place, sums[is_worst]


def text_of_place(place: Iterable[Any]) -> str:
    """Describe a place, like `all_gather in forward of layers.0 (train.py:7)`."""
    kind, phase, module, file, line = place
    text = f"{kind} in {phase or 'other'}{f' of {module}' if module else ''}"
    return f"{text} ({file}:{line})" if file else text


def _because(sums: pd.DataFrame) -> str:
    """Describe the reason of most of the delay, with the mean excess, weighted by delay.

    Without a reason, the time since the previous call is described.
    """
    delays = sums.groupby("reason", observed=True)[["delay_ns", "longer"]].sum()
    known = delays[delays.index != ""].sort_values("delay_ns", ascending=False, kind="stable")
    if known.empty or 2 * known["delay_ns"].iloc[0] < delays["delay_ns"].sum():
        return _works(sums)
    excess = known["longer"].iloc[0] / known["delay_ns"].iloc[0]
    return f"; reason: {known.index[0]}, {text_of_duration(excess)} longer than the others"


def _works(sums: pd.DataFrame) -> str:
    """Describe the time since the previous call, of the straggler and of the others.

    The text is empty unless the straggler's time is longer.
    """
    known = sums["known_ns"].sum() or math.nan
    own, others = (sums[name].sum() / known for name in ("worked", "others_worked"))
    if not own > others:  # nan compares false
        return ""
    return (
        f", at which it arrives {text_of_duration(own)} after its previous call and the others "
        f"{text_of_duration(others)}"
    )


def _times(num: int) -> str:
    return "once" if num == 1 else f"{num} times"


NEEDS = (WAITS, DURATION, ALIGNMENT)
STRAGGLER = Rule("straggler", "a rank that is regularly late", stragglers, NEEDS, cure="balance")
STALL = Rule(
    "stall",
    "a single long delay of all other ranks",
    stalls,
    (*NEEDS, STEPS),
    cure=USUAL,
    is_once=True,
)
