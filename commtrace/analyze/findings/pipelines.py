"""Idle time of pipeline stages that could be avoided: see `analyze.pipelines`.

    finding of          reported if
    the schedule        even the ideal, of equal stages without delays, has `schedule_share`
    stages that differ  they have `bubble_share` in most rounds
    one delay           likewise, and most of the idle time beyond the schedule's is due to it
    several causes      all others together have `idle_share` in most rounds

Transfers are among the last, since no pipeline is without; so are stages that differ, unless they
are the main cause. A finding of the schedule names several causes, too, in place of a separate
finding: with few micro-batches, small delays take large shares. The first round is left out if
there are several, since much happens only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import DURATION
from commtrace.analyze.measures.census import census
from commtrace.analyze.pipelines.bubbles import bubbles, times_of
from commtrace.analyze.pipelines.causes import (
    BLOCKED_RECEIVE,
    CAUSES,
    DRAIN,
    IMBALANCE,
    LATE_SEND,
    STRAGGLER,
    TRANSFER,
    WARM_UP,
    ideal,
)
from commtrace.analyze.pipelines.rounds import rounds
from commtrace.analyze.pipelines.schedule import pipeline_schedule
from commtrace.analyze.pipelines.stages import pipeline_stages
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.waits.stragglers import stands_out
from commtrace.units import text_of_duration

_SCHEDULE = (WARM_UP, DRAIN)
_BEYOND = tuple(cause for cause in CAUSES if cause not in _SCHEDULE)
_DELAYS = (STRAGGLER, LATE_SEND, BLOCKED_RECEIVE)
_MOST = 0.5
"""Part of the rounds in which a cause takes its share, and of the idle time beyond the schedule's
that a single delay causes."""
_LEAST_NS = 1_000_000
"""Idle time of all ranks in a round that is worth a finding."""
_LEAST_ACTION_NS = 3_000_000
"""Mean time of actions, below which the host delays them in all ways: no delay is a clear cause."""
_LEAST_NAMED = 0.05
"""Share of the pipeline's time from which on a cause among several is named."""
_FEW_ROUNDS = 3
_UNEVEN = 1.05
"""Most work of a stage, relative to the mean, from which on they are uneven."""


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Idle time in the rounds that are judged; shares are parts of the time of all their ranks.

    Attributes:
        table: Their rows of table `bubbles`, with the round as `key`.
        whole_ns: Time of all ranks in each of them.
        of_ideal: Share that the ideal schedule leaves idle.
        action_ns: Mean time of actions.
    """

    table: pd.DataFrame
    whole_ns: Mapping[Any, float]
    of_ideal: float
    action_ns: float

    def rows(self, causes: tuple[str, ...]) -> pd.DataFrame:
        """Return the idle time of some causes."""
        return self.table[self.table["cause"].isin(causes)]

    def share(self, *causes: str) -> float:
        """Return the share of some causes."""
        return float(self.rows(causes)["duration_ns"].sum()) / sum(self.whole_ns.values())

    def is_usual(self, causes: tuple[str, ...], least: float) -> bool:
        """Return whether causes together have a share in most rounds."""
        idle = self.rows(causes).groupby("key")["duration_ns"].sum()
        of_round: dict[Any, float] = dict(idle.items())
        num = sum(
            time >= max(least * self.whole_ns[key], _LEAST_NS) for key, time in of_round.items()
        )
        return num > 0 and num >= _MOST * len(self.whole_ns)

    def times(self, causes: tuple[str, ...]) -> str:
        """Describe the idle time of some causes."""
        return f"{self.per_round(causes)}, {self.share(*causes):.0%} of the pipeline's time"

    def per_round(self, causes: tuple[str, ...]) -> str:
        """Describe the mean idle time of some causes in a round."""
        idle_ns = float(self.rows(causes)["duration_ns"].sum())
        return f"{text_of_duration(idle_ns / len(self.whole_ns))} of all ranks per round"


def pipeline_bubbles(frames: Frames) -> list[Finding]:
    """Idle time of the schedule, of each clear cause, and of all others together."""
    of = _judged(frames)
    if of is None:
        return []
    found = _causes(frames, of)
    evidence = dict(selected(frames, partial(_transfers, {each: of.rows(each) for each in found})))
    return [
        Finding(
            title=_TITLES.get(causes, _of_several)(frames, of, causes),
            advice=_advice(frames, of, causes),
            calls=evidence[causes],
            cure=_cure(frames, of, causes),
        )
        for causes in found
        if causes in evidence and len(evidence[causes].rows)
    ]


def _transfers(idle: Mapping[tuple[str, ...], pd.DataFrame], part: Frames) -> Selected:
    """Return the calls of a part that idle stages waited for, by causes."""
    found: Selected = {}
    calls = part.comm[part.comm["stage"] >= 0]
    names = calls["rank"].astype(str) + ":" + calls["id"].astype(str)
    for causes, rows in idle.items():
        shown = calls[names.isin(set(rows["transfer"]))]
        if len(shown):
            found[causes] = calls_in(part, shown, cost_bytes=0.0)
    return found


def _judged(frames: Frames) -> _Rounds | None:
    """Return the rounds that are judged; None without pipelines."""
    every = rounds(frames)
    first = min((each.start_ns for each in every), default=0)
    late = [each for each in every if each.start_ns > first] if len(every) >= _FEW_ROUNDS else every
    if not late:
        return None
    times = times_of(every)
    ideals = list(zip(ideal(late, times), (len(each.of_ranks) for each in late), strict=True))
    busy = [sum(best.ends) - sum(best.begins) for best, _ in ideals]
    whole = sum(best.length * num_ranks for best, num_ranks in ideals)
    of_rank = {action.rank: each.pipeline for each in every for action in each.actions}
    table = bubbles(frames)
    keys = list(zip(table["rank"].map(of_rank), table["step"], table["round"], strict=True))
    table = table.assign(key=pd.Series(keys, index=table.index, dtype=object))
    whole_ns = {
        (each.pipeline, each.step, each.number): float(each.length * len(each.of_ranks))
        for each in late
    }
    return _Rounds(
        table=table[table["key"].isin(whole_ns)],
        whole_ns=whole_ns,
        of_ideal=1 - sum(busy) / whole if whole else 0.0,
        action_ns=float(np.mean([action.duration for each in late for action in each.actions])),
    )


def _causes(frames: Frames, of: _Rounds) -> list[tuple[str, ...]]:
    """Return the causes of each finding."""
    thresholds = ("schedule_share", "bubble_share", "idle_share")
    of_schedule, of_cause, of_several = map(frames.settings.threshold, thresholds)
    found: list[tuple[str, ...]] = []
    if of.of_ideal >= of_schedule and of.is_usual(_SCHEDULE, 0.0):
        found.append(_SCHEDULE)
    main = [each for each in _BEYOND if of.share(each) >= _MOST * of.share(*_BEYOND)]
    clear = [each for each in main if each in _DELAYS and of.action_ns >= _LEAST_ACTION_NS]
    clear = [each for each in (IMBALANCE, *clear) if of.is_usual((each,), of_cause)]
    others = [each for each in _BEYOND if each not in clear or each not in main]
    if _SCHEDULE not in found and of.is_usual(tuple(others), of_several):
        found.append(tuple(others))
        clear = [each for each in clear if each not in others]
    return found + [(each,) for each in clear]


def _of_schedule(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    stages = pipeline_stages(frames)
    title = (
        f"The schedule leaves stages idle for {of.of_ideal:.0%} of a round with "
        f"{stages['stage'].nunique()} stages and {stages['num_micro_batches'].max()} "
        f"micro-batches, even if they are equal and nothing is late: {of.per_round(causes)}."
    )
    if not of.is_usual(_BEYOND, frames.settings.threshold("idle_share")):
        return title
    return (
        f"{title} In all, they are idle for {of.share(*CAUSES):.0%}, also due to "
        f"{_shares(frames, of, _BEYOND)}."
    )


def _of_several(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    return (
        f"Stages are idle for {of.share(*CAUSES):.0%} of the pipeline's time, and in the ideal "
        f"schedule for {of.of_ideal:.0%}. The rest is due to "
        f"{_shares(frames, of, causes)}."
    )


_WORDS = {
    STRAGGLER: "actions that take longer than usual",
    LATE_SEND: "late sends",
    BLOCKED_RECEIVE: "late or blocked receives",
    TRANSFER: "transfers and the program between actions",
}


def _named(of: _Rounds, causes: tuple[str, ...]) -> list[str]:
    """Return the causes that have a share of note, or the main cause; the largest first."""
    by_share = sorted(causes, key=of.share, reverse=True)
    return [each for each in by_share if of.share(each) >= _LEAST_NAMED] or by_share[:1]


def _shares(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    words = _WORDS | {IMBALANCE: f"stages that differ ({_slowest(frames)})"}
    return ", ".join(f"{words[each]} {of.share(each):.0%}" for each in _named(of, causes))


def _of_imbalance(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    slowest = _slowest(frames)
    return (
        f"{slowest[0].upper()}{slowest[1:]} per micro-batch: others are idle for "
        f"{of.times(causes)}."
    )


def _slowest(frames: Frames) -> str:
    """Describe the stage that takes longest, relative to the mean of its pipeline."""
    stages = pipeline_stages(frames)
    times = stages["forward_ns"].fillna(0) + stages["backward_ns"].fillna(0)
    ratio = times / times.groupby(stages["pipeline"]).transform("mean")
    place: Any = ratio.idxmax()
    slowest = stages.loc[place, ["stage", "rank"]]
    return (
        f"stage {slowest['stage']} on rank {slowest['rank']} takes {ratio.max():.3g} times the "
        "mean of the stages"
    )


def _of_straggler(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    table = pipeline_schedule(frames)
    by = ["pipeline", "stage", "action"]
    usual = table.groupby(by)["duration_ns"].transform("median")
    late_by = (table["duration_ns"] - usual).where(_is_late(table, of.rows(causes)), 0)
    keys = [*by, "micro_batch"]
    sums = late_by.clip(lower=0).groupby([table[name] for name in keys]).sum()
    key: Any = sums.idxmax()
    rows = table[np.logical_and.reduce([table[name] == key[i] for i, name in enumerate(keys)])]
    first = rows.iloc[0]
    late = late_by[rows.index]
    excess = text_of_duration(float(late[late > 0].mean()))
    return (
        f"The {str(first['action']).replace('_', ' ')} of micro-batch {first['micro_batch']} on "
        f"stage {first['stage']}, rank {first['rank']}, takes {excess} longer than the median of "
        f"the stage: others are idle for {of.times(causes)}."
    )


def _is_late(table: pd.DataFrame, idle: pd.DataFrame) -> pd.Series:
    """Return a mask of the actions of the rounds that a finding is about."""
    steps = set(zip(idle["step"], idle["round"], strict=True))
    return pd.Series(
        [key in steps for key in zip(table["step"], table["round"], strict=True)],
        index=table.index,
    )


def _of_late_send(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    rows = of.rows(causes)
    rows = rows[rows["send_delay_ns"] >= 0]
    delays = pd.DataFrame(
        {
            "rank": rows["transfer"].str.partition(":")[0],
            "delay": rows["send_delay_ns"],
            "transfer": rows["transfer"],
        }
    ).drop_duplicates("transfer")
    sums = delays.groupby("rank")["delay"].sum()
    if not stands_out(sums.max() / sums.sum(), frames.num_ranks):  # nan without any
        return f"Outputs are sent late: stages are idle for {of.times(causes)}."
    rank = str(sums.idxmax())
    of_rank = delays.loc[delays["rank"] == rank, "delay"]
    # Of its sends, those that are late.
    delay = text_of_duration(float(of_rank[of_rank >= of_rank.max() / 2].median()))
    return (
        f"Rank {rank} sends the output of its stage {delay} after it has computed it: stages are "
        f"idle for {of.times(causes)}."
    )


def _of_blocked_receive(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    sums = of.rows(causes).groupby("rank")["duration_ns"].sum()
    is_one = stands_out(sums.max() / sums.sum(), frames.num_ranks)
    who = f"Rank {sums.idxmax()} receives" if is_one else "Ranks receive"
    return (
        f"{who} late although the data had been sent in time: receives are issued late, or blocked "
        f"behind others. Stages are idle for {of.times(causes)}."
    )


_TITLES: Mapping[tuple[str, ...], Callable[[Frames, _Rounds, tuple[str, ...]], str]] = {
    _SCHEDULE: _of_schedule,
    (IMBALANCE,): _of_imbalance,
    (STRAGGLER,): _of_straggler,
    (LATE_SEND,): _of_late_send,
    (BLOCKED_RECEIVE,): _of_blocked_receive,
}
_ADVICE: Mapping[str, str] = {
    WARM_UP: "Use more micro-batches per step, several stages per rank (Interleaved1F1B), or a "
    "zero-bubble schedule.",
    STRAGGLER: "Give micro-batches the same size, such as the same number of tokens, or look for "
    "what else the stage does there.",
    LATE_SEND: "Send an output as soon as it is computed, before hooks, logging and other work.",
    BLOCKED_RECEIVE: "Issue receives before they are needed, and wait for a transfer only when its "
    "data is needed.",
    TRANSFER: "Let a stage compute for longer than a transfer takes (fewer, larger micro-batches), "
    "send fewer bytes (activations in 16 bits), and do less between two actions.",
}
"""Advice by cause, but for stages that differ."""


def _advice(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    """Return the advice for causes; for several, on stages that differ and on the main cause."""
    if causes == _SCHEDULE:
        return _ADVICE[WARM_UP]
    named = _named(of, causes)
    advised = dict.fromkeys([*(each for each in named if each == IMBALANCE), named[0]])
    return " ".join(
        _better_split(frames) if each == IMBALANCE else _ADVICE[each] for each in advised
    )


def even_stages(frames: Frames) -> str:
    """Return the changes with which all stages compute for equally long; "" if they nearly do."""
    actions = frames.pipeline_actions[frames.pipeline_actions["duration_ns"] >= 0]
    work = actions.groupby("rank")["duration_ns"].sum()
    if len(work) < 2 or not work.min() > 0 or work.max() < _UNEVEN * work.mean():
        return ""
    factors = work.mean() / work
    return "; ".join(f"compute *{factors[rank]:.3f} where rank={rank}" for rank in factors.index)


def _cure(frames: Frames, of: _Rounds, causes: tuple[str, ...]) -> str:
    """Return the changes that remove causes, as far as a replay can make them."""
    if causes == _SCHEDULE:
        return ""
    named = _named(of, causes)
    cures = [even_stages(frames)] if IMBALANCE in named else []
    cures += ["earlier"] if {LATE_SEND, BLOCKED_RECEIVE} & {*named} else []
    return "; ".join(filter(None, cures))


def _better_split(frames: Frames) -> str:
    stages = pipeline_stages(frames)
    known = stages[
        (stages["better_layers"] >= 0) & (stages["better_round_ns"] < stages["round_ns"])
    ]
    if known.empty:
        if (stages["better_layers"] >= 0).all():
            return (
                "No other split of whole layers is better: make the layers of slow stages faster."
            )
        advice = "Move layers from slow stages to fast stages."
        is_recorded = census(frames).num_ops > 0
        return advice if is_recorded else advice + " Recorded with operators, a split is computed."
    of_first = known[known["pipeline"] == known["pipeline"].iloc[0]]
    now, better = (", ".join(map(str, of_first[name])) for name in ("num_layers", "better_layers"))
    before, then = (
        text_of_duration(float(of_first[name].iloc[0])) for name in ("round_ns", "better_round_ns")
    )
    return (
        f"Split the layers as {better} instead of {now}: a round then takes about {then} instead "
        f"of {before}."
    )


PIPELINE_BUBBLES = Rule(
    "pipeline_bubbles",
    "idle time of pipeline stages",
    pipeline_bubbles,
    (DURATION,),
)
