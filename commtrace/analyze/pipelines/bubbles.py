"""Idle time of pipeline ranks: each interval, by cause, with what it waits for.

A round is one call of a schedule, from the first action of its ranks to the last. All idle times of
a round add up to its length times the number of its ranks, without the time of its actions.

The times of warm-up and drain come from a replay in which all stages take the same time, the
mean of their medians, and nothing delays them. Replays with the medians of each stage, the measured
times, late sends and blocked receives give the other causes (`causes`). A delay that passes on to
other ranks has its cause there, too. Table `pipeline_stages` has the sums of each stage. An
interval with several causes has a row for each, in this order:

"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from commtrace.analyze.pipelines.causes import CAUSES, Times, causes_of
from commtrace.analyze.pipelines.delays import Delay, delays_of
from commtrace.analyze.pipelines.rounds import NONE, Round, medians, rounds
from commtrace.analyze.pipelines.transfers import transfers_of
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import INSTANT, Column

_WIDTH = max(map(len, CAUSES))
__doc__ = (__doc__ or "") + "".join(
    f"    {name:{_WIDTH}}    {meaning}\n" for name, meaning in CAUSES.items()
)

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("round", int, "", "number of the call of the schedule in the step, from 0"),
    Column("stage", int, "", "stage that was idle: the stage of the next action, else of the last"),
    Column("cause", str, "", "cause, from the list above"),
    Column("start_ns", int, INSTANT, "when it began"),
    Column("duration_ns", int, "ns", "how long it lasted", title="Idle"),
    Column("share", float, "1", "part of the length of the round"),
    Column(
        "action", str, "", "action that the rank waited for to begin; empty after the last action",
        title="Before",
    ),
    Column("micro_batch", int, "", "micro-batch of that action"),
    Column("source_stage", int, "", "stage whose output that action needs; -1 none or its own"),
    Column("source_rank", int, "", "rank of that stage"),
    Column("transfer", str, "", "the send that was late, else the receive, as rank:id"),
    Column(
        "send_delay_ns", int, "ns", "time from the end of the computation to its send; -1 unknown",
        title="Sent after",
    ),
)  # fmt: skip

_SENT_LATE = "late_send"


@of_run
def bubbles(frames: Frames) -> pd.DataFrame:
    """Return a row per interval and cause, the longest first."""
    every = rounds(frames)
    if not every:
        return typed(pd.DataFrame(), COLUMNS)
    transfers = transfers_of(frames)
    times = times_of(every)
    delays = [delays_of(each, transfers) for each in every]
    found = [
        row
        for each, causes, late in zip(every, causes_of(every, times, delays), delays, strict=True)
        for row in _rows(each, causes, late)
    ]
    table = pd.DataFrame(found, columns=[column.name for column in COLUMNS])
    order = ["duration_ns", "rank", "start_ns"]
    table = table.sort_values(order, ascending=[False, True, True], kind="stable")
    return typed(table, COLUMNS)


def times_of(every: list[Round]) -> dict[int, Times]:
    """Return the median times of each pipeline's stages."""
    of_pipelines: dict[int, dict[tuple[int, str], float]] = {}
    for (pipeline, stage, kind), time in medians(every).items():
        of_pipelines.setdefault(pipeline, {})[stage, kind] = time
    return {pipeline: Times.of(found) for pipeline, found in of_pipelines.items()}


def _rows(
    of: Round, causes: Mapping[int, list[dict[str, int]]], delays: list[Delay]
) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    whole = of.length
    for rank, intervals in causes.items():
        places = of.of_ranks[rank]
        since = [0, *(of.actions[place].end for place in places)]
        for begin, place, parts in zip(since, [*places, NONE], intervals, strict=True):
            waiting = _waiting(of, place, places[-1])
            at = of.start_ns + begin
            for cause, length in parts.items():
                evidence = _evidence(cause, delays[place] if place != NONE else Delay())
                head = rank, of.step, of.number, waiting[0], cause, at
                found.append((*head, length, length / whole, *waiting[1:], *evidence))
                at += length
    return found


def _waiting(of: Round, place: int, last: int) -> tuple[int, str, int, int, int]:
    """Return stage, action, micro-batch, source stage and source rank of an awaited action."""
    if place == NONE:
        return of.actions[last].stage, "", NONE, NONE, NONE
    action, source = of.actions[place], of.source(place)
    sender = None if source == NONE else of.actions[source]
    stage, rank = (NONE, NONE) if sender is None else (sender.stage, sender.rank)
    return action.stage, action.kind, action.micro_batch, stage, rank


def _evidence(cause: str, delay: Delay) -> tuple[str, int]:
    call = delay.sent if cause == _SENT_LATE else delay.received
    call = call or delay.received or delay.sent
    return "" if call is None else call.name, delay.sender_delay


BUBBLES = Analysis(
    "bubbles",
    "Bubbles of pipelines",
    "Why is each pipeline stage idle, and when?",
    bubbles,
    COLUMNS,
    topic="When",
    shown="step rank stage cause duration_ns share action micro_batch source_stage",
    needs="pipeline_actions",
)
