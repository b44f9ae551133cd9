"""Communication of most steps that a program can do without.

    object_collectives     Python objects, which are pickled and take a message for their size
    redundant_barrier      a barrier that the rank's next collective of the group would replace
    unchanged_broadcast    a broadcast of what no rank has written to since an earlier one

A line counts only if it communicates in most steps, so objects at the begin, or barriers around a
checkpoint now and then, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from commtrace.analyze.arrivals import NEEDS_EVERYONE
from commtrace.analyze.cached_per_run import OF_COLLECTIVES, OF_RANKS, of_each_call
from commtrace.analyze.census import census
from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    Selected,
    calls_in,
    calls_that,
    selected,
    transfer,
)
from commtrace.analyze.findings.needs import CONTENTS, STEPS, WRITES
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import numbers
from commtrace.analyze.steady_steps import is_counted

_LINE = ["group", "source_file", "source_line"]
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
    found: Selected = {}
    for key, rows in _by_line(frames, comm[comm["carries"] == "objects"]):
        counted = rows[is_counted(frames, rows["step"])]
        time = transfer(frames, counted)
        bundles = time.groupby([counted["rank"], counted["step"]])
        # One message remains of each step; it is counted like the longest.
        saved = time.sum(min_count=1) - bundles.max().sum(min_count=1)
        found[key] = calls_in(frames, rows, cost_bytes=0.0, cost_ns=float(saved))
    return found


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
    comm = frames.comm.sort_values(["rank", "thread", "id"])
    by = comm.groupby(["rank", "thread"], sort=False)
    following = by[["kind", "group"]].shift(-1).astype(object)
    is_redundant = (
        (comm["kind"] == "barrier")
        & following["kind"].isin(NEEDS_EVERYONE)
        & (following["group"] == comm["group"].astype(object))
    )
    return {key: calls_in(frames, rows) for key, rows in _by_line(frames, comm[is_redundant])}


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
    return {key: calls_in(frames, each) for key, each in _by_line(frames, rows)}


@of_each_call(OF_RANKS)
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


@of_each_call(OF_COLLECTIVES)
def _is_unchanged(frames: Frames) -> pd.Series:
    """Return a mask of broadcasts whose tensor one earlier one wrote to last, on all members."""
    comm, number = frames.comm, numbers(frames)
    of = comm[(comm["kind"] == "broadcast") & (number >= 0)]
    before = _last_written_by(frames)[of.index].groupby([of["group"].cat.codes, number[of.index]])
    sizes = dict(zip(frames.groups["name"], frames.groups["size"], strict=True))
    size = of["group"].astype(object).map(sizes).astype("float64")
    is_same = (before.transform("count") == size) & (
        before.transform("min") == before.transform("max")
    )
    return is_same.reindex(comm.index, fill_value=False)


def _by_line(frames: Frames, rows: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
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
)
REDUNDANT_BARRIER = Rule(
    "redundant_barrier",
    "a barrier of most steps that the next collective replaces",
    redundant_barrier,
    (STEPS,),
)
UNCHANGED_BROADCAST = Rule(
    "unchanged_broadcast",
    "a broadcast of most steps that changes nothing",
    unchanged_broadcast,
    (STEPS, WRITES),
)
