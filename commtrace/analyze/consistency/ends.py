"""States of ranks at the end of the recording, if they are in no call.

    raised      an exception ended it
    killed      its process ended by a signal, as its launcher saw it
    ended       it closed its recording
    inside      it is in something that was noted and has not ended: a compilation, a wait for data
    stuck       its stack was taken while others waited for it
    silent      it gave no sign of life while others did
    alive       it ran on outside of communication, where is unknown
    unclosed    it did not close its recording, or still runs, and nothing else is known
    unknown     the trace was imported, and does not say it

Each is in words that follow the name of the rank. What an event explains ends with it: one that
is over does not say where a rank is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from commtrace.analyze.cached_per_run import of_run
from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, LOG, PROFILER
from commtrace.analyze.frame import Frames
from commtrace.analyze.source_lines import line_text
from commtrace.exit_codes import SIGNAL_EXIT_CODE, text_of_exit
from commtrace.schema import (
    COMPILE,
    DATA_WAIT,
    DESTROY_PROCESS_GROUP,
    FATAL,
    INIT_PROCESS_GROUP,
    NEW_GROUP,
    NOT_RUNNING,
    RECOMPILE,
    STORE,
)
from commtrace.schema import STUCK as STUCK_STACK
from commtrace.units import text_of_duration

RAISED, KILLED, ENDED, INSIDE, STUCK, SILENT, ALIVE, UNCLOSED, UNKNOWN = (
    "raised", "killed", "ended", "inside", "stuck", "silent", "alive", "unclosed", "unknown",
)  # fmt: skip
HELD_UP = frozenset((RAISED, KILLED, INSIDE, STUCK, SILENT, ALIVE, UNCLOSED))
"""States of a rank that did not get to what follows, rather than leave a call out."""

_NO_LATER = {
    FLIGHT_RECORDER: "has no later call in its dump",
    PROFILER: "has no later call in its profile",
    LOG: "printed no later call",
}
"""Words by the source of an import, which has no signs of life."""
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
"""Events that a rank can be inside of, in words; those of calls through the store are waits."""


@dataclass(frozen=True, slots=True)
class End:
    """State of a rank at the end, in words that follow its name, and the user's line."""

    rank: int
    state: str
    text: str
    source: str = ""
    at_ns: int = -1
    until: str = ""

    def sentence_part(self) -> str:
        """Return the words with the line: `is stuck at train.py:12 in lock.acquire()`."""
        where = f" at {self.source}" if self.source else ""
        return f"{self.text}{where}{self.until}"


@of_run
def ends(frames: Frames) -> dict[int, End]:
    """Return what each recorded rank was doing at the end, by rank."""
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
    """Return an end whose words name what its line says."""
    file, _, line = end.source.rpartition(":")
    text = line_text(frames, file, int(line)) if file else ""
    where = f"has been in `{text}`" if text else "has been there"
    return replace(end, text=end.text.replace("{where}", where))


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
    # Where it was comes before a signal, by which a rank that hangs may be ended at last.
    for find in (_fatal, _closed, _inside, _stuck, _signal):
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
        return End(rank, ALIVE, f"{text}, where is unknown", at_ns=last_ns)
    return End(rank, UNCLOSED, "")


def _fatal(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    rows = events[events["kind"] == FATAL]
    if rows.empty:
        return None
    event = rows.iloc[-1]
    return End(rank, RAISED, f"was ended by {event['text']}", _source(event), int(event["at_ns"]))


def _signal(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    return End(rank, KILLED, killed) if (killed := _killed(row)) else None


def _killed(row: Mapping[Any, Any]) -> str:
    """Return by which signal a rank ended by itself, before its launcher ended the others."""
    code = int(row["exit_code"])
    text = text_of_exit(SIGNAL_EXIT_CODE - code) if code < -1 else ""
    return text if not text or text.startswith("crashed") else f"was {text}"


def _closed(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    if not row["complete"] or int(row["end_ns"]) < 0:
        return None
    after = max(int(row["end_ns"]) - max(last_ns, int(row["start_ns"])), 0)
    text = f"ended its recording {text_of_duration(after)} after its last call"
    return End(rank, ENDED, text, at_ns=int(row["end_ns"]))


def _inside(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    """Return what began after the last call and has not ended; what is over explains nothing."""
    rows = events[events["kind"].isin([*_INSIDE]) & (events["at_ns"] >= last_ns)]
    rows = rows.drop_duplicates(["kind", "thread", "at_ns"], keep="last")
    rows = rows[rows["duration_ns"] < 0]
    if rows.empty:
        return None
    event = rows.iloc[-1]
    text = _INSIDE[str(event["kind"])].format(text=event["text"])
    return End(rank, INSIDE, text, _source(event), int(event["at_ns"]))


def _stuck(rank: int, row: Mapping[Any, Any], events: pd.DataFrame, last_ns: int) -> End | None:
    """Return the user's line of the latest stack that was taken after the last call."""
    rows = events[(events["kind"] == STUCK_STACK) & (events["at_ns"] >= last_ns)]
    if rows.empty:
        return None
    # The main thread comes first in each of the times at which stacks were taken.
    event = rows[rows["at_ns"] == rows["at_ns"].max()].iloc[0]
    lasted = text_of_duration(int(event["at_ns"]) - max(last_ns, int(row["start_ns"])))
    return End(rank, STUCK, f"{{where}} for {lasted}", _source(event), int(event["at_ns"]))


def _source(event: pd.Series) -> str:
    return f"{event['source_file']}:{event['source_line']}" if event["source_file"] else ""
