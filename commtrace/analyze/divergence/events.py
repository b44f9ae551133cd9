"""Host events of one rank only, between its last common call and its next call.

An exception, or the end of its data, makes a rank continue at another line. An event that only
takes time is no explanation once it has ended; `consistency.ends` describes ranks that are still
inside such an event.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.schema import DATA_END, EXCEPTION, THREAD_DIED

_SUBJECTS = {
    THREAD_DIED: "lost a thread to {text}",
    EXCEPTION: "raised {text}",
    DATA_END: "ran out of data ({text})",
}
"""Texts by kind of events after which a program continues at another line; likeliest first."""


HostEventRecord = dict[str, object]
"""A row of table `host_events`."""


def event_of(
    frames: Frames, rank: int, since_ns: int, until_ns: int, others: tuple[int, int, int] | None
) -> HostEventRecord | None:
    """Return the most likely event that made a rank diverge from another; None if there is none.

    Args:
        frames: The run.
        rank: The rank.
        since_ns: Time of its last common call.
        until_ns: Time of its next call; -1 if it made none.
        others: The other rank, and the times of its last common and its next call; None if the
            rank is compared with its own earlier rounds.
    """
    table = frames.host_events
    own = _between(table, rank, since_ns, until_ns)
    usual = table.iloc[:0] if others is None else _between(table, *others)
    for kind in _SUBJECTS:
        rows = own[own["kind"] == kind]
        if len(rows) > _num_alike(usual, kind):
            return rows.iloc[-1].to_dict()
    return None


def exception_since(
    frames: Frames, rank: int, since_ns: int, until_ns: int, other: int
) -> HostEventRecord | None:
    """Return a rank's first exception in a time interval, at a line where `other` raised none."""
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
    return rows


def text_of_event(event: HostEventRecord) -> str:
    """Return the text of an event, which follows the name of its rank."""
    where = f" at {event['source_file']}:{event['source_line']}" if event["source_file"] else ""
    return _SUBJECTS[str(event["kind"])].format(text=event["text"]) + where
