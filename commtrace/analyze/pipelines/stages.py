"""Stages of pipelines: their times, the causes of their idle time, and a better split of layers.

All times are per round, the mean or, if it says so, the median. Idle times come from table
`bubbles`, and belong to the stage of the action that the rank waited to begin.

The better split moves layers between stages, in their order, so that the longest forward and
backward pass of a stage becomes shortest. A replay with its times gives the length of a round. It
is unknown if the times of layers are (`layers`), which needs recorded operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.pipelines.bubbles import bubbles, times_of
from commtrace.analyze.pipelines.causes import CAUSES, WARM_UP, Times, balanced
from commtrace.analyze.pipelines.layers import Layer, layers_of
from commtrace.analyze.pipelines.replay import Replays
from commtrace.analyze.pipelines.rounds import NONE, Round, rounds
from commtrace.analyze.pipelines.split import best_split
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LOSS_OF_CHUNK,
    Column,
)

_FORWARD = (FORWARD, LOSS_OF_CHUNK)
_BACKWARD = (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)

COLUMNS = (
    Column("pipeline", int, "", "number of the pipeline, from 0"),
    Column("stage", int, "", "number of the stage, from 0"),
    Column("rank", int, "", "global rank of the stage"),
    Column("num_rounds", int, "", "recorded calls of the schedule", title="Rounds"),
    Column(
        "num_micro_batches", int, "", "micro-batches of a round, the most", title="Micro-batches"
    ),
    Column("forward_ns", float, "ns", "median forward pass of a micro-batch", title="Forward"),
    Column(
        "backward_ns", float, "ns",
        "median backward pass of a micro-batch, inputs and weights together; nan if none ran",
        title="Backward",
    ),
    Column("busy_ns", float, "ns", "time of its actions in a round", title="Busy"),
    Column("idle_ns", float, "ns", "time in which it was idle in a round", title="Idle"),
    *(
        Column(f"{name}_ns", float, "ns", f"the part of it of this cause: {meaning}")
        for name, meaning in CAUSES.items()
    ),
    Column("round_ns", float, "ns", "median length of a round of the pipeline", title="Round"),
    Column("num_layers", int, "", "layers of the stage; -1 unknown", title="Layers"),
    Column(
        "better_layers", int, "", "layers of the stage in the better split; -1 unknown",
        title="Better",
    ),
    Column(
        "better_round_ns", float, "ns", "length of a round with the better split; nan unknown",
        title="Round then",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BetterSplit:
    """A better split of the layers of a pipeline.

    Attributes:
        now: Number of layers of each stage.
        better: The same in the better split.
        saved_ns: Time by which it shortens a round.
    """

    now: Mapping[int, int]
    better: Mapping[int, int]
    saved_ns: float


@of_run
def pipeline_stages(frames: Frames) -> pd.DataFrame:
    """Return a row per stage of each pipeline."""
    every = rounds(frames)
    if not every:
        return typed(pd.DataFrame(), COLUMNS)
    table = bubbles(frames)
    splits, times = better_splits(frames), times_of(every)
    idle = table.groupby(["rank", "stage", "cause"])["duration_ns"].sum()
    found: list[dict[str, object]] = []
    for pipeline, of_stages in _by_stage(every).items():
        of_pipeline = [each for each in every if each.pipeline == pipeline]
        split, num_rounds = splits.get(pipeline), len(of_pipeline)
        length = float(np.median([each.length for each in of_pipeline]))
        for (stage, rank), busy_ns in sorted(of_stages.items()):
            parts = {
                f"{cause}_ns": float(idle.get((rank, stage, cause), 0)) / num_rounds
                for cause in CAUSES
            }
            found.append(
                {
                    "pipeline": pipeline,
                    "stage": stage,
                    "rank": rank,
                    "num_rounds": num_rounds,
                    "num_micro_batches": max(map(_num_micro_batches, of_pipeline)),
                    "forward_ns": _time(times[pipeline], stage, _FORWARD),
                    "backward_ns": _time(times[pipeline], stage, _BACKWARD),
                    "busy_ns": busy_ns / num_rounds,
                    "idle_ns": sum(parts.values()),
                    **parts,
                    "round_ns": length,
                    "num_layers": NONE if split is None else split.now[stage],
                    "better_layers": NONE if split is None else split.better[stage],
                    "better_round_ns": np.nan if split is None else length - split.saved_ns,
                }
            )
    return typed(pd.DataFrame(found), COLUMNS)


def _num_micro_batches(of: Round) -> int:
    return len({each.micro_batch for each in of.actions})


def _by_stage(every: Sequence[Round]) -> dict[int, dict[tuple[int, int], float]]:
    """Return the sum of the durations of each stage, by pipeline, stage and rank."""
    found: dict[int, dict[tuple[int, int], float]] = {}
    for each in every:
        busy = found.setdefault(each.pipeline, {})
        for action in each.actions:
            key = action.stage, action.rank
            busy[key] = busy.get(key, 0.0) + action.duration
    return found


def _time(times: Times, stage: int, kinds: Sequence[str]) -> float:
    """Return the median time of some kinds of actions of a micro-batch; nan if none ran.

    Stages that run the backward pass both as a whole and in two parts have the time of the whole.
    """
    found = {kind: times.of_stages.get((stage, kind), np.nan) for kind in kinds}
    whole = found.get(BACKWARD, np.nan)
    if not np.isnan(whole):
        return whole
    known = [time for time in found.values() if not np.isnan(time)]
    return sum(known) if known else np.nan


@of_run
def better_splits(frames: Frames) -> dict[int, BetterSplit]:
    """Return the better split of each pipeline whose layers are known."""
    every = rounds(frames)
    of_rank = {action.rank: each.pipeline for each in every for action in each.actions}
    times = times_of(every)
    found: dict[int, BetterSplit] = {}
    for pipeline, layers in layers_of(frames, of_rank).items():
        of_pipeline = [each for each in every if each.pipeline == pipeline]
        split = _split(layers, times[pipeline], of_pipeline) if of_pipeline else None
        if split is not None:
            found[pipeline] = split
    return found


def _split(layers: list[Layer], times: Times, every: Sequence[Round]) -> BetterSplit | None:
    stages = sorted({stage for stage, _ in times.of_stages})
    now = {stage: sum(each.stage == stage for each in layers) for stage in stages}
    if min(now.values()) == 0:
        return None
    forward = [each.forward * _known(times, each.stage, _FORWARD) for each in layers]
    backward = [each.backward * _known(times, each.stage, _BACKWARD) for each in layers]
    whole = [sum(pair) for pair in zip(forward, backward, strict=True)]
    sizes = best_split(whole, len(stages))
    present = _sums(whole, list(now.values()))
    if max(present) <= max(_sums(whole, sizes)):
        return BetterSplit(now, now, 0.0)
    ahead, back = (
        dict(zip(stages, _sums(each, sizes), strict=True)) for each in (forward, backward)
    )
    weights = [times.equal.get(kind, 0.0) for kind in (BACKWARD_INPUT, BACKWARD_WEIGHT)]
    parts = {
        kind: weight / (sum(weights) or 1)
        for kind, weight in zip(_BACKWARD[1:], weights, strict=True)
    }
    replays = Replays(every)
    durations = [
        ahead[action.stage] if action.kind in _FORWARD
        else back[action.stage] * parts.get(action.kind, 1.0)
        for action in replays.actions
    ]  # fmt: skip
    saved = [
        before.length - after.length
        for before, after in zip(
            balanced(replays, {every[0].pipeline: times}), replays.replay(durations), strict=True
        )
    ]
    best = float(np.median(saved))
    if best <= 0:
        return BetterSplit(now, now, 0.0)
    return BetterSplit(now, dict(zip(stages, sizes, strict=True)), best)


def _known(times: Times, stage: int, kinds: Sequence[str]) -> float:
    time = _time(times, stage, kinds)
    return 0.0 if np.isnan(time) else time


def _sums(times: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return the sum of the times of each stage."""
    ends = np.cumsum(sizes)
    return [sum(times[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


_WORDS = {WARM_UP: "warm-up"}


def idle_summary(table: pd.DataFrame) -> str:
    """Return the part of the rounds in which stages are idle, by cause, in a sentence."""
    if table.empty:
        return "No actions of pipeline stages were recorded."
    ranks = table.drop_duplicates(["pipeline", "rank"])
    whole = float(ranks["round_ns"].sum())
    parts = {cause: float(table[f"{cause}_ns"].sum()) / whole for cause in CAUSES}
    causes = ", ".join(
        f"{share:.1%} {_WORDS.get(cause, cause.replace('_', ' '))}"
        for cause, share in parts.items()
        if share > 0
    )
    idle = f"The ranks of the pipeline are idle for {sum(parts.values()):.1%} of the rounds"
    return f"{idle}: {causes}." if causes else f"{idle}."


STAGES = Analysis(
    "pipeline_stages",
    "Stages of pipelines",
    "Why is each pipeline stage idle, and what would a better split of layers give?",
    pipeline_stages,
    COLUMNS,
    topic="When",
    shown="stage rank forward_ns backward_ns busy_ns idle_ns imbalance_ns straggler_ns "
    "late_send_ns blocked_receive_ns better_layers better_round_ns",
    needs="pipeline_actions",
)
