"""Schedules of pipelines: each action as it ran, and in the ideal schedule.

The ideal schedule has the same order of actions on each rank. All stages take the same time, the
mean of their medians, and nothing is late.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.pipelines.bubbles import times_of
from commtrace.analyze.pipelines.causes import ideal
from commtrace.analyze.pipelines.rounds import rounds
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import INSTANT, Column

COLUMNS = (
    Column("pipeline", int, "", "number of the pipeline, from 0"),
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("round", int, "", "number of the call of the schedule in the step, from 0"),
    Column("rank", int, "", "global rank"),
    Column("stage", int, "", "number of the stage, from 0"),
    Column("micro_batch", int, "", "number of the micro-batch, from 0"),
    Column("action", str, "", "forward (with the loss), backward, backward_input, backward_weight"),
    Column("start_ns", int, INSTANT, "when it began"),
    Column("begin_ns", int, "ns", "the same, since the begin of the round", title="Began"),
    Column("duration_ns", int, "ns", "how long it took", title="Took"),
    Column(
        "ideal_begin_ns", float, "ns", "when it begins in the ideal schedule", title="Ideal begin"
    ),
    Column("ideal_duration_ns", float, "ns", "how long it takes there", title="Ideal time"),
)  # fmt: skip


@of_run
def pipeline_schedule(frames: Frames) -> pd.DataFrame:
    """Return a row per action, in order of pipelines, rounds and time."""
    every = rounds(frames)
    times = times_of(every)
    found: list[tuple[object, ...]] = []
    for of, best in zip(every, ideal(every, times), strict=True):
        for each, begin, end in zip(of.actions, best.begins, best.ends, strict=True):
            at = of.pipeline, of.step, of.number, each.rank, each.stage, each.micro_batch
            ran = of.start_ns + each.begin, each.begin, each.duration
            found.append((*at, each.kind, *ran, begin, end - begin))
    table = pd.DataFrame(found, columns=[column.name for column in COLUMNS])
    return typed(table, COLUMNS)


SCHEDULE = Analysis(
    "pipeline_schedule",
    "Schedules of pipelines",
    "When did each stage work on each micro-batch, and when would it in the ideal schedule?",
    pipeline_schedule,
    COLUMNS,
    topic="When",
    shown="step rank stage micro_batch action begin_ns duration_ns ideal_begin_ns",
    needs="pipeline_actions",
)
