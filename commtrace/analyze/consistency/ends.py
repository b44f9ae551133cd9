"""States of ranks at the end of the recording, for ranks that are in no call.

    raised      an exception ended the rank
    killed      a signal ended its process, as its launcher reported
    ended       the rank closed its recording
    inside      an event of the rank has not ended: a compilation, a wait for data
    stuck       the stack of the rank was taken while other ranks waited
    silent      the rank gave no sign of life while others did
    alive       the rank ran outside of communication; its line is unknown
    unclosed    the rank did not close its recording, or still runs; nothing else is known
    unknown     the trace was imported, and does not state it

Each state has a text that follows the name of the rank. An event that has ended does not show
where a rank is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, LOG, PROFILER, source_of
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.source_lines import line_text
from commtrace.exit_codes import CRASHED, SIGNAL_EXIT_CODE, text_of_exit
from commtrace.schema import (
    COMPILE,
    DATA_WAIT,
    DESTROY_PROCESS_GROUP,
    EXIT,
    FATAL,
    INIT_PROCESS_GROUP,
    NEW_GROUP,
    NOT_RUNNING,
    RECOMPILE,
    STORE,
    WAITING_KINDS,
)
from commtrace.schema import STUCK as STUCK_STACK
from commtrace.units import text_of_duration

RAISED, KILLED, ENDED, INSIDE, STUCK, SILENT, ALIVE, UNCLOSED, UNKNOWN = (
    "raised", "killed", "ended", "inside", "stuck", "silent", "alive", "unclosed", "unknown",
)  # fmt: skip
HELD_UP = frozenset((RAISED, KILLED, INSIDE, STUCK, SILENT, ALIVE, UNCLOSED))
"""States of a rank that did not reach its next call, and so did not skip it."""

_NO_LATER = {
    FLIGHT_RECORDER: "has no later call in its dump",
    PROFILER: "has no later call in its profile",
    LOG: "printed no later call",
}
"""Text by the source of an import; imported traces have no signs of life."""
_SILENT_NS = 3_000_000_000
_RUNNING_NS = 1_000_000_000
_INSIDE = {
    DATA_WAIT: "waits for a batch of its data loader",
    COMPILE: "compiles",
    RECOMPILE: "compiles again since guards had failed ({text})",
    NOT_RUNNING: "stands still: {text}",
    NEW_GROUP: "waits in new_group ({text})",
    STORE: "waits for the store ({text})",
    INIT_PROCESS_GROUP: "waits in init_process_group",
    DESTROY_PROCESS_GROUP: "waits in destroy_process_group",
}
"""Text by kind of an event that has not ended."""


@dataclass(frozen=True, slots=True)
class End:
    """State of a rank at the end, with a text that follows its name, and the user's line.

    Attributes:
        is_waiting: True if the rank is inside of something that waits for other ranks.
    """

    rank: int
    state: str
    text: str
    source: str = ""
    at_ns: int = -1
    until: str = ""
    is_waiting: bool = False

    def sentence_part(self) -> str:
        """Return the text with the line: `waits for a batch of its data loader at train.py:12`."""
        where = f" at {self.source}" if self.source else ""
        return f"{self.text}{where}{self.until}"


@of_run
def ends(frames: Frames) -> dict[int, End]:
    """Return the state of each recorded rank at the end, by rank."""
    table = frames.ranks
    latest = max([*table["alive_ns"].tolist(), *table["end_ns"].tolist()], default=-1)
    events = {int(str(rank)): rows for rank, rows in frames.host_events.groupby("rank")}
    none = pd.DataFrame(frames.host_events.iloc[:0])
    source = str(frames.run.get("imported_from", ""))
    last_call = pd.concat(frames.by_ranks(_last_activity)).groupby(level=0).max()
    return {
        int(row["rank"]): _with_line(
            frames,
            _end_of(
                row,
                events.get(int(row["rank"]), none),
                latest,
                source,
                int(last_call.get(row["rank"], -1)),
            ),
        )
        for row in table.to_dict("records")
    }


def _with_line(frames: Frames, end: End) -> End:
    """Return the end of a rank; for a stuck rank, add the text of its line."""
    if end.state != STUCK:
        return end
    file, _, line = end.source.rpartition(":")
    text = line_text(frames, file, int(line)) if file else ""
    return replace(end, text=f"has been {f'in `{text}`' if text else 'there'} {end.text}")


def _last_activity(part: Frames) -> pd.Series:
    """Return when each rank last issued or ended a call."""
    comm = part.comm
    at = comm[["issue_ns", "complete_ns"]].max(axis=1)
    return at.groupby(comm["rank"]).max()


def _end_of(
    row: Mapping[Any, Any], events: pd.DataFrame, latest: int, source: str, last_ns: int
) -> End:
    rank = int(row["rank"])
    if source:
        return End(rank, UNKNOWN, _NO_LATER.get(source, "has no later call in its file"))
    # A signal comes last: it may have ended a rank that was inside of something, or stuck.
    for find in (_fatal, _crashed, _closed, _inside, _stuck, _signal):
        if (found := find(rank, row, events, last_ns)) is not None:
            is_killed = found.state in (INSIDE, STUCK) and _killed(row)
            until = f", until it {_killed(row)}" if is_killed else ""
            return replace(found, until=until)
    alive = max(int(row["alive_ns"]), int(row["end_ns"]))
    if 0 <= alive <= latest - _SILENT_NS:
        lasted = text_of_duration(latest - alive)
        text = f"gave no sign of life for the last {lasted}: it was stopped, or had died"
        return End(rank, SILENT, text, at_ns=alive)
    if int(row["alive_ns"]) >= 0 and alive - last_ns >= _RUNNING_NS:
        text = f"was outside of communication for {text_of_duration(alive - last_ns)}"
        return End(rank, ALIVE, f"{text}, at an unknown line", at_ns=last_ns)
    return End(rank, UNCLOSED, "")


def _fatal(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    rows = events[events["kind"].isin((FATAL, EXIT))]
    if rows.empty:
        return None
    event = rows.iloc[-1]
    at, source = int(event["at_ns"]), source_of(event)
    if event["kind"] == EXIT:
        return End(rank, ENDED, f"ended its program by {event['text']}", source, at)
    return End(rank, RAISED, f"was ended by {event['text']}", source, at)


def _crashed(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    """Return a crash in native code, at the user's line of the stack that was left by it."""
    killed = _killed(row)
    if not killed.startswith(CRASHED):
        return None
    at_line = _stuck(rank, row, events, last_ns)
    source = "" if at_line is None else at_line.source
    return End(rank, KILLED, killed, source)


def _signal(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    return End(rank, KILLED, killed) if (killed := _killed(row)) else None


def _killed(row: Mapping[Any, Any]) -> str:
    """Return the text of the signal that ended a rank before its launcher ended the others."""
    code = int(row["exit_code"])
    text = text_of_exit(SIGNAL_EXIT_CODE - code) if code < -1 else ""
    return text if not text or text.startswith(CRASHED) else f"was {text}"


def _closed(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    if not row["complete"] or int(row["end_ns"]) < 0:
        return None
    after = max(int(row["end_ns"]) - max(last_ns, int(row["start_ns"])), 0)
    text = f"ended its recording {text_of_duration(after)} after its last call"
    return End(rank, ENDED, text, at_ns=int(row["end_ns"]))


def _inside(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    """Return the last event that began after the last call and has not ended."""
    rows = events[events["kind"].isin([*_INSIDE]) & (events["at_ns"] >= last_ns)]
    rows = rows.drop_duplicates(["kind", "thread", "at_ns"], keep="last")
    rows = rows[rows["duration_ns"] < 0]
    if rows.empty:
        return None
    event = rows.iloc[-1]
    text = _INSIDE[str(event["kind"])].format(text=event["text"])
    is_waiting = event["kind"] in WAITING_KINDS
    at = int(event["at_ns"])
    return End(rank, INSIDE, text, source_of(event), at, is_waiting=is_waiting)


def _stuck(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    """Return the user's line in the latest stack that was taken after the last call."""
    rows = events[(events["kind"] == STUCK_STACK) & (events["at_ns"] >= last_ns)]
    if rows.empty:
        return None
    # The main thread comes first among the stacks of one time.
    event = rows[rows["at_ns"] == rows["at_ns"].max()].iloc[0]
    lasted = text_of_duration(int(event["at_ns"]) - max(last_ns, int(row["start_ns"])))
    return End(rank, STUCK, f"for {lasted}", source_of(event), int(event["at_ns"]))
