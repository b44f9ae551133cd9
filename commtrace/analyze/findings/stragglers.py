"""Stragglers: a rank that is always late, a rank that stalled once, and ranks late in turn.

The cost is the time in which all others waited (`delayed_calls` of `commtrace.analyze.stragglers`),
multiplied by the number of ranks involved. If n ranks behave alike, each causes 1/n of all delays.
A rank counts as late if its odds are `straggler_ratio` times as high and its delays are spread over
several calls. The thresholds are settings (`commtrace.settings.THRESHOLDS`).
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.arrivals import NEEDS_EVERYONE
from commtrace.analyze.findings.finding import Evidence, Finding, Rule, calls_in
from commtrace.analyze.findings.needs import ALIGNMENT, DURATION, STEPS, WAITS, clock_error_ns
from commtrace.analyze.frame import Frames
from commtrace.analyze.lateness import main_reasons
from commtrace.analyze.measures import counted_ns
from commtrace.analyze.stragglers import delayed_calls
from commtrace.units import text_of_duration

_PLACE = ["kind", "phase", "module", "source_file", "source_line"]


def stragglers(frames: Frames) -> list[Finding]:
    """Ranks that cause most of the delay, in several calls, at a significant share of the run."""
    events = _delays(frames)
    found = []
    for rank in _always_late(frames, events):
        own = events[events["rank"] == rank]
        place, worst = _worst_place(frames, own)
        part = worst["delay_ns"].sum() / own["delay_ns"].sum()
        found.append(
            Finding(
                title=f"Rank {rank} delays the other ranks, by "
                f"{text_of_duration(own['delay_ns'].sum())} in {len(own)} calls; {part:.0%} of it "
                f"before {place}{_because(worst)}.",
                advice="Check what only that rank does before that call (data loading, logging, an "
                "uneven shard), and its machine.",
                calls=_calls(frames, worst, own["cost"].sum()),
            )
        )
    return found


def stalls(frames: Frames) -> list[Finding]:
    """Delays far above the median, by ranks that are not always late, after the first step."""
    events = _delays(frames)
    stalled = _stalled(frames, events)
    return [
        Finding(
            title=f"Rank {rank} stalled the other ranks {_times(len(own))}, for "
            f"{text_of_duration(own['delay_ns'].sum())}: before "
            f"{_worst_place(frames, own.head(1))[0]}, in step {own['step'].iloc[0]}"
            f"{_because(own.head(1))}.",
            advice="Check what that rank did at that time: a checkpoint, an evaluation, garbage "
            "collection, slow file access.",
            calls=_calls(frames, own, own["cost"].sum()),
        )
        for rank, own in stalled.sort_values("cost", ascending=False).groupby("rank")
    ]


def load_imbalance(frames: Frames) -> list[Finding]:
    """Delays caused by changing ranks that together are a large share of the run.

    The first collective of a group is excluded, since ranks start at different times.
    """
    events = _delays(frames)
    rest = events[~events["rank"].isin(_always_late(frames, events))]
    rest = rest[~rest.index.isin(_stalled(frames, events).index) & (rest["number"] > 0)]
    cost = float(rest["cost"].sum())
    if rest["rank"].nunique() < 2 or cost < _least_cost(frames, "imbalance_share"):
        return []
    share = (rest.groupby("rank")["cost"].sum() / cost).sort_values(ascending=False)
    most = ", ".join(f"rank {rank} {part:.0%}" for rank, part in share.head(3).items())
    place, _ = _worst_place(frames, rest)
    return [
        Finding(
            title=f"Changing ranks delay all others, by "
            f"{text_of_duration(rest['delay_ns'].sum())} "
            f"({most}); mostly before {place}.",
            advice="Balance the load in each step: batches of equal length, experts of equal load, "
            "garbage collection at the same time; or more cores, if ranks share them.",
            calls=_calls(frames, rest, cost),
        )
    ]


def _calls(frames: Frames, events: pd.DataFrame, cost_ns: float) -> Evidence:
    """Return the calls of stragglers, with the cost of their delays."""
    return calls_in(frames, frames.calls_at(events.index), cost_bytes=0.0, cost_ns=float(cost_ns))


def _delays(frames: Frames) -> pd.DataFrame:
    """Return the delayed collectives, within steps if these are marked, with their cost.

    A delay within the error of the alignment of clocks may not have occurred.
    """
    events = delayed_calls(frames)
    events = events[events["delay_ns"] > clock_error_ns(frames)]
    if len(frames.steps):
        events = events[events["step"] >= 0]
    # In floats, since the squares in `_always_late` could overflow 64 bits.
    events = events.assign(cost=events["delay_ns"].astype("float64") * events["num_ranks"])
    return events[events["kind"].isin(NEEDS_EVERYONE)]


def _always_late(frames: Frames, events: pd.DataFrame) -> list[int]:
    total, num_ranks = events["cost"].sum(), frames.num_ranks
    least = max(_least_cost(frames, "straggler_share"), 1)
    odds, least_spread = map(frames.settings.threshold, ("straggler_ratio", "straggler_spread"))
    found = []
    for rank, cost in events.groupby("rank")["cost"]:
        # The effective number of calls: n if all n cost the same, and 1 if a single one dominates.
        spread = cost.sum() ** 2 / (cost**2).sum()
        # Without a division, since the others may cause no delay at all.
        is_most = cost.sum() * (num_ranks - 1) >= odds * (total - cost.sum())
        if cost.sum() >= least and is_most and spread >= least_spread:
            found.append(rank)
    return found


def _stalled(frames: Frames, events: pd.DataFrame) -> pd.DataFrame:
    """Return delays that stand out; the first step and each group's first call are excluded."""
    first = frames.steps["step"].min() if frames.steps["step"].nunique() > 1 else -1
    usual = events["delay_ns"].median()
    return events[
        (events["number"] > 0)
        & (events["step"] != first)
        & (events["cost"] >= _least_cost(frames, "straggler_share"))
        & (events["delay_ns"] >= frames.settings.threshold("stall_factor") * usual)
        & ~events["rank"].isin(_always_late(frames, events))
    ]


def _least_cost(frames: Frames, share: str) -> float:
    return frames.settings.threshold(share) * counted_ns(frames)


def _worst_place(frames: Frames, events: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return the costliest place in words, and the events there.

    The words are like `all_gather in forward of layers.0 (train.py:7)`.
    """
    calls = events[_PLACE]
    number = calls.groupby(_PLACE, sort=False, observed=True).ngroup()
    worst = events[number == events["cost"].groupby(number).sum().idxmax()]
    kind, phase, module, file, line = calls.loc[worst.index[0]]
    text = f"{kind} in {phase or 'other'}{f' of {module}' if module else ''}"
    return (f"{text} ({file}:{line})" if file else text), worst


def _because(events: pd.DataFrame) -> str:
    """Describe the reason of most of the delay, with the mean excess, weighted by delay.

    Without a reason, the time since the previous call is described.
    """
    (reason,) = main_reasons(events.assign(every=0), ["every"])["reason"]
    if not reason:
        return _works(events)
    known = events[events["reason"] == reason]
    excess = (known["excess_ns"] * known["delay_ns"]).sum() / known["delay_ns"].sum()
    return f"; reason: {reason}, {text_of_duration(excess)} longer than the others"


def _works(events: pd.DataFrame) -> str:
    """Describe the time since the previous call, of the straggler and of the others.

    The means are weighted by delay. The text is empty unless the straggler's time is longer.
    """
    known = events.dropna(subset=["work_ns", "others_work_ns"])
    weights = known["delay_ns"] / (known["delay_ns"].sum() or float("nan"))
    own, others = ((known[name] * weights).sum() for name in ("work_ns", "others_work_ns"))
    if not own > others:  # nan compares false
        return ""
    return (
        f", at which it arrives {text_of_duration(own)} after its previous call and the others "
        f"{text_of_duration(others)}"
    )


def _times(num: int) -> str:
    return "once" if num == 1 else f"{num} times"


_NEEDS = (WAITS, DURATION, ALIGNMENT)
STRAGGLER = Rule("straggler", "a rank that is regularly late", stragglers, _NEEDS)
STALL = Rule("stall", "a single long delay of all other ranks", stalls, (*_NEEDS, STEPS))
LOAD_IMBALANCE = Rule(
    "load_imbalance", "changing ranks that delay the others", load_imbalance, _NEEDS
)
