"""Sends that wait for a receive whose data they do not send.

    rank 1      recv from 0 ......waits......──  send to 2 ──
    rank 2      recv from 1 ......waits......................──  send to 3 ──
    rank 3      recv from 2 ......waits..........................................──

A rank that receives, and only then sends data it already had, keeps the next rank waiting: the
transfers of a ring run in sequence. The cost is the time for which the receiver waits meanwhile.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import ALIGNMENT, DURATION, WAITS, clock_error_ns
from commtrace.analyze.findings.stragglers import least_cost
from commtrace.analyze.measures.arrivals import arrivals, sent
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.cached_per_run import of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import RECV, SEND, Arrays, across_ranks, matches, of_match
from commtrace.units import text_of_duration, text_of_ranks

_LEAST_CALLS = 3


def serial_sends(frames: Frames) -> list[Finding]:
    """Sends behind receives that have nothing to do with them, by group."""
    if not census(frames).kinds[SEND]:
        return []
    least = max(least_cost(frames, "straggler_share"), 1)
    sends = dict(selected(frames, _held_sends))
    found = []
    for group, receives in selected(frames, _waiting_receives):
        if receives.lost_ns < least or len(receives.rows) < _LEAST_CALLS or group not in sends:
            continue
        calls = sends[group]
        waiting = text_of_ranks(sorted(set(receives.first["rank"])))
        found.append(
            Finding(
                f"Sends wait for receives that they do not depend on{calls.at_place}: what they "
                f"send was there before. {waiting} wait {text_of_duration(receives.lost_ns)} for "
                "it.",
                "Issue the send and the receive together (batch_isend_irecv, or isend before "
                "recv), and wait for both after that.",
                calls.joined(receives),
            )
        )
    return found


@of_each_call
def _since(frames: Frames) -> pd.Series:
    """Return since when a send could have been issued that follows receives; nan for all others.

    It is when the first of the receives in a row before it was issued at which its data was ready,
    in ns since the start.
    """
    comm = frames.comm
    since = np.full(len(comm), math.nan)
    if not len(comm):
        return pd.Series(since, comm.index)
    is_send, is_receive = ((comm["kind"] == kind).to_numpy() for kind in (SEND, RECV))
    issue = (comm["issue_ns"] - frames.start_ns).to_numpy("float64")
    known = comm["data_ready_ns"].to_numpy() >= 0
    ready = (comm["data_ready_ns"] - frames.start_ns).to_numpy("float64")
    ended = (comm["complete_ns"] - frames.start_ns).to_numpy("float64")
    owner = list(zip(comm["rank"], comm["thread"], strict=True))
    # Stages of a pipeline send in the order of their schedule.
    is_of_stage = comm["stage"].to_numpy() >= 0
    row: list[int] = []
    order = np.lexsort([comm[name].to_numpy() for name in ("id", "thread", "rank")])
    for place in order.tolist():
        if row and owner[row[-1]] != owner[place]:
            row = []
        if is_receive[place] and not is_of_stage[place]:
            row.append(place)
            continue
        if is_send[place] and known[place]:
            waited = [
                each
                for each in row
                if ready[place] <= issue[each] and issue[each] <= ended[each] <= issue[place]
            ]
            since[place] = issue[waited[0]] if waited else math.nan
        row = []
    return pd.Series(since, comm.index)


@across_ranks(since=(np.nan, "float64"))
def _held_since(part: Frames, into: Arrays) -> None:
    """Instants since which the send of each transfer could have been issued, as of `_since`."""
    is_send = (part.comm["kind"] == SEND) & (matches(part) >= 0)
    into["since"][matches(part)[is_send]] = _since(part)[is_send]


@of_each_call
def _delay(frames: Frames) -> pd.Series:
    """Return for how many ns each receive waits while its send is behind other receives."""
    comm = frames.comm
    issue = (comm["issue_ns"] - frames.start_ns).to_numpy("float64")
    since = of_match(frames, _held_since(frames)["since"], np.nan)
    waited = arrivals(frames)["wait_ns"].clip(lower=0)
    held = (sent(frames) - np.maximum(since, issue)).clip(lower=0)
    delay = pd.Series(np.minimum(held, waited), comm.index)
    return delay.where(comm["kind"] == RECV).fillna(0.0)


def _waiting_receives(frames: Frames) -> Selected:
    """Return the receives that wait for such sends, by group."""
    delay = _delay(frames)
    rows = frames.comm[delay > clock_error_ns(frames.whole)]
    return {
        str(group): calls_in(frames, each, cost_bytes=0.0, lost_ns=delay)
        for group, each in rows.groupby("group", observed=True)
    }


def _held_sends(frames: Frames) -> Selected:
    """Return the sends that could have been issued earlier, by group."""
    rows = frames.comm[_since(frames).notna()]
    return {
        str(group): calls_in(frames, each, cost_bytes=0.0)
        for group, each in rows.groupby("group", observed=True)
    }


SERIAL_SENDS = Rule(
    "serial_sends",
    "sends behind receives that they do not depend on",
    serial_sends,
    (WAITS, DURATION, ALIGNMENT),
    cure="overlap",
)
