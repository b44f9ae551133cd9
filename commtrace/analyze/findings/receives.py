"""Receives in a fixed order, which keep senders waiting whose data is there.

    receiver    recv from 1 ........waits........──  recv from 2 ──
    rank 1          computes                     send
    rank 2               send ......is delayed......─────────────

A rank that receives from several others in turn waits for the first of them although others have
sent. Their sends could have been received: the cost is their wait meanwhile.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import ALIGNMENT, DURATION, WAITS, clock_error_ns
from commtrace.analyze.measures.arrivals import arrivals, sent
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.run.cached_per_run import of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import RECV, SEND, Arrays, across_ranks, matches, of_match
from commtrace.units import text_of_duration, text_of_ranks

_LEAST_CALLS = 3


def serial_receives(frames: Frames) -> list[Finding]:
    """Receives that wait for one rank while others, which are received from later, have sent."""
    if not census(frames).kinds[RECV]:
        return []
    least = frames.settings.threshold("straggler_share") * counted_ns(frames)
    waiting = dict(selected(frames, _waiting))
    found = []
    for receiver, sends in selected(frames, _delayed_sends):
        if sends.lost_ns < max(least, 1) or len(sends.rows) < _LEAST_CALLS:
            continue
        calls = waiting[receiver]
        delayed = text_of_ranks(sorted(set(sends.first["rank"])))
        found.append(
            Finding(
                f"Rank {receiver} receives from others in a fixed order{calls.at_place}: while it "
                f"waits for one sender, {delayed} wait {text_of_duration(sends.lost_ns)} for it "
                "to receive what they have to send.",
                "Post the receives of all sources at once (irecv), and take whichever is done "
                "first.",
                calls.joined(sends),
            )
        )
    return found


@of_each_call
def _behind(frames: Frames) -> pd.DataFrame:
    """Return for how many ns each receive is `behind` others, and how many it has others `wait`.

    Receives of a rank follow each other if it makes no other call in between. One is behind another
    while that waits for its send, from when its own send was issued.
    """
    comm = frames.comm
    behind, kept = np.zeros(len(comm)), np.zeros(len(comm))
    sent_at = sent(frames).to_numpy()
    if not np.isfinite(sent_at).any():
        return pd.DataFrame({"behind": behind, "wait": kept}, index=comm.index)
    issue = (comm["issue_ns"] - frames.start_ns).to_numpy("float64")
    peer, stage = comm["peer"].to_numpy(), comm["stage"].to_numpy()
    order = np.lexsort([comm[name].to_numpy() for name in ("id", "thread", "rank")])
    owner = list(zip(comm["rank"], comm["thread"], strict=True))
    row: list[int] = []
    for place in order.tolist():
        # Pipeline stages receive in the order of their schedule.
        is_receive = math.isfinite(sent_at[place]) and stage[place] < 0
        if row and (
            not is_receive
            or owner[row[-1]] != owner[place]
            or peer[place] in {peer[each] for each in row}
        ):
            row = []
        if not is_receive:
            continue
        for before in row:
            # A receive that was issued ahead of the wait can be served at any time.
            if issue[place] >= sent_at[before]:
                since = max(sent_at[place], issue[before])
                late = max(sent_at[before] - since, 0.0)
                behind[place] += late
                kept[before] += late
        row.append(place)
    return pd.DataFrame({"behind": behind, "wait": kept}, index=comm.index)


@across_ranks(behind=(0.0, "float64"))
def _receives_behind(part: Frames, into: Arrays) -> None:
    """Time in ns for which the receive of each transfer is behind others."""
    is_receive = (part.comm["kind"] == RECV) & (matches(part) >= 0)
    into["behind"][matches(part)[is_receive]] = _behind(part)["behind"][is_receive]


@of_each_call
def _delay(frames: Frames) -> pd.Series:
    """Return for how many ns each send's receive is behind others."""
    behind = of_match(frames, _receives_behind(frames)["behind"], 0.0)
    return pd.Series(behind, frames.comm.index).where(frames.comm["kind"] == SEND, 0.0)


def _delayed_sends(frames: Frames) -> Selected:
    """Return the sends that wait for a receive that is behind others, by the receiving rank."""
    comm = frames.comm
    # A send that does not block its rank, of a small message, is not delayed.
    waited = arrivals(frames)["wait_ns"].clip(lower=0)
    delay = pd.concat([_delay(frames), waited], axis=1).min(axis=1)
    rows = comm[delay > clock_error_ns(frames.whole)]
    return {
        int(str(peer)): calls_in(frames, each, cost_bytes=0.0, lost_ns=delay)
        for peer, each in rows.groupby("peer")
    }


def _waiting(frames: Frames) -> Selected:
    """Return the receives that let other sends wait, by rank."""
    rows = frames.comm[_behind(frames)["wait"] > 0]
    return {
        int(str(rank)): calls_in(frames, each, cost_bytes=0.0)
        for rank, each in rows.groupby("rank")
    }


SERIAL_RECEIVES = Rule(
    "serial_receives",
    "receives in a fixed order that keep senders waiting",
    serial_receives,
    (WAITS, DURATION, ALIGNMENT),
    cure="overlap",
)
