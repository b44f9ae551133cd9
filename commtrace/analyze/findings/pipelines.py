"""Idle time of pipeline stages that could be avoided: see `analyze.pipelines`.

There is a finding for each cause that takes its share of most rounds. The first round is left out
if there are several, since much happens only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import DURATION
from commtrace.analyze.frame import Frames
from commtrace.analyze.pipelines.bubbles import bubbles
from commtrace.analyze.pipelines.causes import (
    BLOCKED_RECEIVE,
    DRAIN,
    IMBALANCE,
    LATE_SEND,
    STRAGGLER,
    WARM_UP,
)
from commtrace.analyze.pipelines.rounds import rounds
from commtrace.analyze.pipelines.schedule import pipeline_schedule
from commtrace.analyze.pipelines.stages import pipeline_stages
from commtrace.units import text_of_duration

_SCHEDULE = "schedule"
_GROUPS: Mapping[str, tuple[str, ...]] = {
    _SCHEDULE: (WARM_UP, DRAIN),
    IMBALANCE: (IMBALANCE,),
    STRAGGLER: (STRAGGLER,),
    LATE_SEND: (LATE_SEND,),
    BLOCKED_RECEIVE: (BLOCKED_RECEIVE,),
}
_THRESHOLDS = {_SCHEDULE: "schedule_share"}
_LEAST_ROUNDS = 0.5
"""Part of the rounds in which a cause takes its share."""
_LEAST_NS = 1_000_000
"""Idle time of all ranks in a round that is worth a finding."""
_LEAST_ACTION_NS = 3_000_000
"""Mean time of actions, below which the latency of transfers and of the host governs a pipeline."""
_FEW_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _Idle:
    """Idle time of one group of causes.

    Attributes:
        rows: Rows of table `bubbles`.
        per_round: Mean time of all ranks in a round, in ns.
        share: Its part of the time of all ranks.
    """

    rows: pd.DataFrame
    per_round: float
    share: float


def pipeline_bubbles(frames: Frames) -> list[Finding]:
    """Causes of idle time that take their share of most rounds."""
    found = _idle(frames)
    if not found:
        return []
    calls = {name: sorted(set(idle.rows["transfer"]) - {""}) for name, idle in found.items()}
    evidence = dict(selected(frames, partial(_transfers, calls)))
    return [
        Finding(
            title=_TITLES[name](frames, idle),
            advice=_ADVICE[name](frames),
            calls=replace(evidence[name], cost_ns=float(idle.rows["duration_ns"].sum())),
        )
        for name, idle in found.items()
        if name in evidence
    ]


def _transfers(names: Mapping[str, list[str]], part: Frames) -> Selected:
    """Return the calls of a part among transfers named `rank:id`, by cause."""
    found: Selected = {}
    for cause, every in names.items():
        pairs = pd.MultiIndex.from_tuples([tuple(map(int, each.split(":"))) for each in every])
        calls = part.comm[part.comm["stage"] >= 0]
        is_in = pd.MultiIndex.from_frame(calls[["rank", "id"]]).isin(pairs) if every else []
        rows = calls[is_in] if every else calls[:0]
        if len(rows):
            found[cause] = calls_in(part, rows, cost_bytes=0.0, cost_ns=0.0, share=0.0)
    return found


def _idle(frames: Frames) -> dict[str, _Idle]:
    every = rounds(frames)
    first = min((each.start_ns for each in every), default=0)
    late = [each for each in every if each.start_ns > first] if len(every) >= _FEW_ROUNDS else every
    times = [action.duration for each in late for action in each.actions]
    if not times or sum(times) < _LEAST_ACTION_NS * len(times):
        return {}
    table = bubbles(frames)
    ranks_of = {(each.pipeline, each.step, each.number): each for each in late}
    of_rank = {action.rank: each.pipeline for each in every for action in each.actions}
    keys = list(zip(table["rank"].map(of_rank), table["step"], table["round"], strict=True))
    table = table.assign(key=pd.Series(keys, index=table.index, dtype=object))
    table = table[table["key"].isin(ranks_of)]
    whole = {key: float(each.length * len(each.of_ranks)) for key, each in ranks_of.items()}
    found: dict[str, _Idle] = {}
    for name, causes in _GROUPS.items():
        rows = table[table["cause"].isin(causes)]
        idle = rows.groupby("key")["duration_ns"].sum()
        least = frames.settings.threshold(_THRESHOLDS.get(name, "bubble_share"))
        of_round: dict[Any, float] = dict(idle.items())
        num = sum(time >= max(least * whole[key], _LEAST_NS) for key, time in of_round.items())
        if num and num >= _LEAST_ROUNDS * len(late):
            total = float(idle.sum())
            found[name] = _Idle(rows, total / len(late), total / sum(whole.values()))
    return found


def _times(idle: _Idle) -> str:
    return (
        f"{text_of_duration(idle.per_round)} of all ranks per round, "
        f"{idle.share:.0%} of the pipeline's time"
    )


def _of_schedule(frames: Frames, idle: _Idle) -> str:
    stages = pipeline_stages(frames)
    return (
        f"The schedule leaves stages idle for {_times(idle)}, with "
        f"{stages['stage'].nunique()} stages and {stages['num_micro_batches'].max()} "
        "micro-batches."
    )


def _of_imbalance(frames: Frames, idle: _Idle) -> str:
    stages = pipeline_stages(frames)
    times = stages["forward_ns"].fillna(0) + stages["backward_ns"].fillna(0)
    ratio = times / times.groupby(stages["pipeline"]).transform("mean")
    place: Any = ratio.idxmax()
    slowest = stages.loc[place, ["stage", "rank"]]
    return (
        f"Stage {slowest['stage']} on rank {slowest['rank']} takes {ratio.max():.3g} times the "
        f"mean of the stages per micro-batch: others are idle for {_times(idle)}."
    )


def _of_straggler(frames: Frames, idle: _Idle) -> str:
    table = pipeline_schedule(frames)
    by = ["pipeline", "stage", "action"]
    usual = table.groupby(by)["duration_ns"].transform("median")
    late_by = (table["duration_ns"] - usual).where(_is_late(table, idle), 0)
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
        f"the stage: others are idle for {_times(idle)}."
    )


def _is_late(table: pd.DataFrame, idle: _Idle) -> pd.Series:
    """Return a mask of the actions of the rounds that a finding is about."""
    steps = set(zip(idle.rows["step"], idle.rows["round"], strict=True))
    return pd.Series(
        [key in steps for key in zip(table["step"], table["round"], strict=True)],
        index=table.index,
    )


def _of_late_send(frames: Frames, idle: _Idle) -> str:
    rows = idle.rows[idle.rows["send_delay_ns"] >= 0]
    delays = pd.DataFrame(
        {
            "rank": rows["transfer"].str.partition(":")[0],
            "delay": rows["send_delay_ns"],
            "transfer": rows["transfer"],
        }
    ).drop_duplicates("transfer")
    if delays.empty:
        return f"Outputs are sent late: stages are idle for {_times(idle)}."
    sums = delays.groupby("rank")["delay"].sum()
    rank = str(sums.idxmax())
    of_rank = delays.loc[delays["rank"] == rank, "delay"]
    # Of its sends, those that are late.
    delay = text_of_duration(float(of_rank[of_rank >= of_rank.max() / 2].median()))
    return (
        f"Rank {rank} sends the output of its stage {delay} after it has computed it: stages are "
        f"idle for {_times(idle)}."
    )


def _of_blocked_receive(frames: Frames, idle: _Idle) -> str:
    sums = idle.rows.groupby("rank")["duration_ns"].sum()
    return (
        f"Rank {sums.idxmax()} receives what had been sent to it late: its receive is issued late, "
        f"or blocked behind another one. Stages are idle for {_times(idle)}."
    )


_TITLES: Mapping[str, Callable[[Frames, _Idle], str]] = {
    _SCHEDULE: _of_schedule,
    IMBALANCE: _of_imbalance,
    STRAGGLER: _of_straggler,
    LATE_SEND: _of_late_send,
    BLOCKED_RECEIVE: _of_blocked_receive,
}


def _more_micro_batches(frames: Frames) -> str:
    del frames
    return (
        "Use more micro-batches per step, several stages per rank (Interleaved1F1B), or a "
        "zero-bubble schedule."
    )


def _better_split(frames: Frames) -> str:
    stages = pipeline_stages(frames)
    known = stages[
        (stages["better_layers"] >= 0) & (stages["better_round_ns"] < stages["round_ns"])
    ]
    if known.empty:
        advice = "Move layers from slow stages to fast ones."
        is_known = (stages["better_layers"] >= 0).all()
        return advice if is_known else advice + " Recorded with operators, a split is computed."
    of_first = known[known["pipeline"] == known["pipeline"].iloc[0]]
    now, better = (", ".join(map(str, of_first[name])) for name in ("num_layers", "better_layers"))
    before, then = (
        text_of_duration(float(of_first[name].iloc[0])) for name in ("round_ns", "better_round_ns")
    )
    return (
        f"Split the layers as {better} instead of {now}: a round then takes about {then} instead "
        f"of {before}."
    )


def _even_micro_batches(frames: Frames) -> str:
    del frames
    return (
        "Give micro-batches the same size, such as the same number of tokens, or look for what "
        "else the stage does there."
    )


def _send_at_once(frames: Frames) -> str:
    del frames
    return "Send an output as soon as it is computed, before hooks, logging and other work."


def _receive_early(frames: Frames) -> str:
    del frames
    return (
        "Issue receives before they are needed, and wait for a transfer only when its data is "
        "needed."
    )


_ADVICE: Mapping[str, Callable[[Frames], str]] = {
    _SCHEDULE: _more_micro_batches,
    IMBALANCE: _better_split,
    STRAGGLER: _even_micro_batches,
    LATE_SEND: _send_at_once,
    BLOCKED_RECEIVE: _receive_early,
}

PIPELINE_BUBBLES = Rule(
    "pipeline_bubbles",
    "idle time of pipeline stages",
    pipeline_bubbles,
    (DURATION,),
)
