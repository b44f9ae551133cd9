"""Events on the host of one rank only, between its last common call and its next one."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.schema import (
    COMPILE,
    DATA_END,
    DATA_WAIT,
    EXCEPTION,
    GC_PAUSE,
    NOT_RUNNING,
    RECOMPILE,
)
from commtrace.units import text_of_duration

_ORDER = (EXCEPTION, DATA_END, RECOMPILE, DATA_WAIT, NOT_RUNNING, COMPILE, GC_PAUSE)
"""Kinds of events, those first that most likely make a rank do something else."""
_LONG_NS = 200_000_000
_SUBJECTS = {
    EXCEPTION: "raised {text}",
    DATA_END: "ran out of data ({text})",
    RECOMPILE: "compiled again since guards had failed ({text})",
    COMPILE: "compiled",
    DATA_WAIT: "waited for a batch of its data loader",
    GC_PAUSE: "collected garbage ({text})",
    NOT_RUNNING: "stood still: {text}",
}
_OF_CONTROL = (EXCEPTION, DATA_END)
"""Kinds after which a program goes on elsewhere, however long they take."""


HostEventRecord = dict[str, object]
"""A row of table `host_events`."""


def event_of(
    frames: Frames, rank: int, since_ns: int, until_ns: int, others: tuple[int, int, int]
) -> HostEventRecord | None:
    """Return the event that most likely made a rank part from another; None if there is none.

    Args:
        frames: The run.
        rank: The rank that parted.
        since_ns: Time of its last common call.
        until_ns: Time of its next call; -1 if it made none.
        others: Another rank, and the times of its last common call and of its next one.
    """
    table = frames.host_events
    own = _between(table, rank, since_ns, until_ns)
    usual = _between(table, *others)
    for kind in _ORDER:
        rows = own[own["kind"] == kind]
        if kind not in _OF_CONTROL:
            rows = rows[(rows["duration_ns"] < 0) | (rows["duration_ns"] >= _LONG_NS)]
        if rows.empty or len(rows) <= _num_alike(usual, kind):
            continue
        return rows.iloc[0].to_dict()
    return None


def exception_since(
    frames: Frames, rank: int, since_ns: int, until_ns: int, other: int
) -> HostEventRecord | None:
    """Return the first exception on a rank, and not on another, in a stretch of time."""
    raised = frames.host_events[frames.host_events["kind"] == EXCEPTION]
    own, usual = (_between(raised, each, since_ns, until_ns) for each in (rank, other))
    rows = own[~own["source_line"].isin(usual["source_line"])]
    return None if rows.empty else rows.iloc[0].to_dict()


def _num_alike(usual: pd.DataFrame, kind: str) -> int:
    return int((usual["kind"] == kind).sum())


def _between(table: pd.DataFrame, rank: int, since_ns: int, until_ns: int) -> pd.DataFrame:
    at = table["at_ns"]
    inside = (table["rank"] == rank) & (at >= since_ns)
    rows = table[inside & (at <= until_ns)] if until_ns >= 0 else table[inside]
    # An event that takes long has a row while it goes on; the last one states how long it took.
    return rows.drop_duplicates(["kind", "thread", "at_ns"], keep="last")


def text_of_event(event: HostEventRecord) -> str:
    """Return an event in words, behind the name of its rank."""
    text = _SUBJECTS[str(event["kind"])].format(text=event["text"])
    duration = event["duration_ns"]
    if event["kind"] in _OF_CONTROL or event["kind"] == NOT_RUNNING:
        took = ""
    elif isinstance(duration, int) and duration >= 0:
        took = f", which took {text_of_duration(duration)}"
    else:
        took = ", which had not ended"
    where = f" at {event['source_file']}:{event['source_line']}" if event["source_file"] else ""
    return f"{text}{where}{took}"
