"""Communication of most steps that a program can do without.

    object_collectives     Python objects, which are pickled and take a message for their size
    redundant_barrier      a barrier that the rank's next collective of the group would replace
    unchanged_broadcast    another broadcast of a tensor that no rank has written to since
    reduce_then_broadcast  a reduction to one rank, which sends its result to all: an all-reduce
    broadcast_buffers      buffers that DistributedDataParallel broadcasts before each pass

A line counts only if it communicates in most steps, so objects at the begin, or barriers around a
checkpoint now and then, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    REMOVE,
    Evidence,
    Finding,
    Rule,
    Selected,
    calls_in,
    calls_that,
    selected,
)
from commtrace.analyze.findings.needs import CONTENTS, DURATION, STEPS, USES_OF_REDUCED, WRITES
from commtrace.analyze.measures.arrivals import NEEDS_EVERYONE
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.run.cached_per_run import of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import Arrays, across_ranks, entries, matches, numbers

_LINE = ["group", "source_file", "source_line"]
_DDP = "DistributedDataParallel"
_MOST = 0.5
_LEAST_STEPS = 3


def object_collectives(frames: Frames) -> list[Finding]:
    """Collectives of Python objects at a line of most steps."""
    return [
        Finding(
            f"In most steps, {calls_that(frames, len(calls.rows), '', 'carry')} Python objects"
            f"{calls.at_place}: each object is pickled, and takes a message more for its size.",
            "Communicate a tensor of known shape instead, every so many steps, or once if the "
            "object does not change.",
            calls,
        )
        for _, calls in selected(frames, _of_objects)
    ]


def _of_objects(frames: Frames) -> Selected:
    comm = frames.comm
    return {
        key: calls_in(frames, rows, cost_bytes=0.0)
        for key, rows in by_line(frames, comm[comm["carries"] == "objects"])
    }


def redundant_barrier(frames: Frames) -> list[Finding]:
    """Barriers of most steps before a collective that waits for all ranks of the group, too."""
    return [
        Finding(
            f"In most steps, {calls_that(frames, len(calls.rows), ' of barrier', 'are')} followed "
            f"by a collective of the same group that waits for all ranks as well{calls.at_place}.",
            "Remove the barrier, unless ranks exchange files, or measure times, behind it.",
            calls,
        )
        for _, calls in selected(frames, _barriers)
    ]


def _barriers(frames: Frames) -> Selected:
    if not census(frames.whole).kinds["barrier"]:
        return {}
    comm = frames.comm[["rank", "thread", "id", "kind", "group"]]
    comm = comm.sort_values(["rank", "thread", "id"])
    by = comm.groupby(["rank", "thread"], sort=False)
    following = by[["kind", "group"]].shift(-1).astype(object)
    is_redundant = (
        (comm["kind"] == "barrier")
        & following["kind"].isin(NEEDS_EVERYONE)
        & (following["group"] == comm["group"].astype(object))
    )
    redundant = frames.comm.loc[comm.index[is_redundant]]
    return {key: calls_in(frames, rows) for key, rows in by_line(frames, redundant)}


def unchanged_broadcast(frames: Frames) -> list[Finding]:
    """Broadcasts of most steps whose tensor no recorded operator has written to, on any rank, since
    an earlier broadcast of it.
    """
    return [
        Finding(
            f"In most steps, {calls_that(frames, len(calls.rows), ' of broadcast', 'send')} a "
            f"tensor that no rank has written to since its last broadcast{calls.at_place}.",
            "Broadcast it when it has changed (of DistributedDataParallel: "
            "broadcast_buffers=False).",
            calls,
        )
        for _, calls in selected(frames, _unchanged)
    ]


def _unchanged(frames: Frames) -> Selected:
    if not census(frames.whole).kinds["broadcast"]:
        return {}
    rows = frames.comm[_is_unchanged(frames)]
    return {key: calls_in(frames, each) for key, each in by_line(frames, rows)}


@of_each_call
def _last_written_by(frames: Frames) -> pd.Series:
    """Return the number of the broadcast that last wrote to a broadcast's tensor; nan unknown."""
    comm, number = frames.comm, numbers(frames)
    of = comm[(comm["kind"] == "broadcast") & (comm["complete_ns"] >= 0) & (number >= 0)]
    keys = ["rank", "group", "root", "dtype", "payload_bytes"]
    calls = of[keys].astype({"group": object, "dtype": object}).assign(number=number[of.index])
    ends = calls.assign(at=of["complete_ns"]).drop_duplicates([*keys, "at"])
    reads = calls.assign(at=of["data_ready_ns"])
    pairs = reads.merge(ends, on=[*keys, "at"], how="left", suffixes=("", "_before"))
    before = pd.Series(pairs["number_before"].to_numpy("float64"), of.index)
    return before.where(before < number[of.index]).reindex(comm.index)


@across_ranks(known=(0, "int64"), low=(np.inf, "float64"), high=(-1.0, "float64"))
def _writers(part: Frames, into: Arrays) -> None:
    """Lowest and highest number of the broadcast that last wrote to each broadcast's tensor."""
    before = _last_written_by(part)[(part.comm["kind"] == "broadcast") & (numbers(part) >= 0)]
    before = before.dropna()
    at = matches(part)[before.index]
    np.add.at(into["known"], at, 1)
    np.minimum.at(into["low"], at, before)
    np.maximum.at(into["high"], at, before)


@of_each_call
def _is_unchanged(frames: Frames) -> pd.Series:
    """Return a mask of broadcasts whose tensor one earlier broadcast wrote last, on all members."""
    comm = frames.comm
    at = matches(frames)[(comm["kind"] == "broadcast") & (numbers(frames) >= 0)]
    writers = entries(_writers(frames), at)
    sizes = dict(zip(frames.groups["name"], frames.groups["size"], strict=True))
    size = comm["group"][at.index].astype(object).map(sizes).astype("float64")
    is_same = (writers["known"] == size) & (writers["low"] == writers["high"])
    return is_same.reindex(comm.index, fill_value=False)


def broadcast_buffers(frames: Frames) -> list[Finding]:
    """Broadcasts of buffers by DistributedDataParallel that block ranks for a large part of the
    steps' time.
    """
    least = max(frames.settings.threshold("metric_share") * counted_ns(frames), 1)
    return [
        Finding(
            f"In most steps, {calls_that(frames, len(calls.rows), ' of broadcast', 'send')} the "
            "model's buffers of rank 0 to all ranks before a forward pass, for "
            f"{calls.lost_ns / counted_ns(frames):.0%} of the steps.",
            "Use broadcast_buffers=False of DistributedDataParallel: each rank then keeps the "
            "running statistics of its own samples, which training does not use. Broadcast the "
            "buffers before an evaluation, or use SyncBatchNorm.",
            calls,
        )
        for _, calls in selected(frames, _of_buffers)
        if calls.lost_ns >= least
    ]


def _of_buffers(frames: Frames) -> Selected:
    comm = frames.comm
    is_own = (comm["kind"] == "broadcast") & (comm["module_class"] == _DDP)
    is_own &= (comm["phase"] == "forward") & (comm["blocked_ns"] >= 0)
    if not is_own.any():
        return {}
    rows = comm[is_own & ~_is_unchanged(frames)]
    lost = rows["blocked_ns"].astype("float64")
    return {
        key: calls_in(frames, each, lost_ns=lost[each.index]) for key, each in by_line(frames, rows)
    }


def reduce_then_broadcast(frames: Frames) -> list[Finding]:
    """Broadcasts of most steps from a rank to which as much was reduced, and which has used it."""
    found = dict(selected(frames, _reduced_to_root))
    every = [
        reduce(
            Evidence.joined, [found[key] for key in ((*line, True), (*line, False)) if key in found]
        )
        for *line, is_root in found
        if is_root
    ]
    return [
        Finding(
            f"In most steps, {calls_that(frames, len(calls.rows), ' of broadcast', 'send')} data "
            f"that was reduced to the same rank just before{calls.at_place}.",
            "Use all_reduce: no rank has to handle the tensor twice, or for all the others. Each "
            "rank then computes from the result what only the root computes now.",
            calls,
        )
        for calls in every
    ]


def _reduced_to_root(frames: Frames) -> Selected:
    """Return broadcasts after a reduction to their root, by line, and whether the rank is it.

    The nth of a step belong to each other. The root must have used the reduced data before.
    """
    kinds = census(frames.whole).kinds
    if not (kinds["reduce"] and kinds["broadcast"]):
        return {}
    comm = frames.comm[(frames.comm["step"] >= 0) & (frames.comm["root"] >= 0)]
    # Small messages steer the program: the root decides by its own what it sends.
    least = frames.settings.threshold("small_bytes")
    comm = comm[comm["payload_bytes"] >= least].sort_values(["rank", "id"])
    cells = comm[["rank", "group", "step", "root", "dtype", "payload_bytes"]]
    cells = cells.astype({"group": object, "dtype": object}).assign(
        id=comm["id"], used=comm["result_used_ns"], begin=comm["issue_ns"], row=comm.index
    )
    by = [*cells.columns[:6], "nth"]
    reduces, broadcasts = (
        of_kind.assign(nth=of_kind.groupby(by[:-1]).cumcount())
        for of_kind in (cells[comm["kind"] == kind] for kind in ("reduce", "broadcast"))
    )
    pairs = broadcasts.merge(reduces, on=by, suffixes=("", "_before"))
    is_root = pairs["rank"] == pairs["root"]
    is_used = (pairs["used_before"] >= 0) & (pairs["used_before"] <= pairs["begin"])
    pairs = pairs[(pairs["id_before"] < pairs["id"]) & (is_used | ~is_root)].set_index("row")
    found: Selected = {}
    rows = frames.comm.loc[pairs.index.sort_values()]
    for key, each in by_line(frames, rows):
        for is_own, own in each.groupby(each["rank"] == each["root"]):
            found[(*key, bool(is_own))] = calls_in(frames, own, cost_bytes=0.0)
    return found


def by_line(frames: Frames, rows: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the calls of each line that makes some in most steps of a rank."""
    rows = rows[rows["step"] >= 0]
    num_steps = frames.steps.groupby("rank")["step"].nunique()
    least = (rows["rank"].map(num_steps).fillna(0) * _MOST).clip(lower=_LEAST_STEPS)
    line = [rows[name].astype(object) for name in _LINE]
    used = rows.groupby([rows["rank"], *line])["step"].transform("nunique")
    rows = rows[used >= least]
    yield from rows.groupby([each[rows.index] for each in line])


OBJECT_COLLECTIVES = Rule(
    "object_collectives",
    "Python objects communicated in most steps",
    object_collectives,
    (CONTENTS, STEPS),
    cure=REMOVE,
)
REDUNDANT_BARRIER = Rule(
    "redundant_barrier",
    "a barrier of most steps that the next collective replaces",
    redundant_barrier,
    (STEPS,),
    cure=REMOVE,
)
UNCHANGED_BROADCAST = Rule(
    "unchanged_broadcast",
    "a broadcast of most steps that changes nothing",
    unchanged_broadcast,
    (STEPS, WRITES),
    cure=REMOVE,
)
BROADCAST_BUFFERS = Rule(
    "broadcast_buffers",
    "buffers that DistributedDataParallel broadcasts in most steps",
    broadcast_buffers,
    (STEPS, DURATION),
    cure=REMOVE,
)
REDUCE_THEN_BROADCAST = Rule(
    "reduce_then_broadcast",
    "a reduction to a rank that sends the result to all",
    reduce_then_broadcast,
    (STEPS, USES_OF_REDUCED),
    cure=REMOVE,
)
