"""First fault of a run that failed, in a few lines, for the command that has recorded it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from commtrace.settings import settings_of
from commtrace_cli.terminal import say, working

if TYPE_CHECKING:
    from commtrace.analyze import Frames
    from commtrace.tracefile import Trace

MOST_ROWS = 500_000
"""Number of calls and operators up to which a run is checked unasked, which takes some seconds."""


def print_verdict(trace: Trace) -> None:
    """Print the first fault that the check of consistency finds, unless the run is too large."""
    if trace.num_rows("comm") + trace.num_rows("ops") > MOST_ROWS:
        return
    # Who presses Ctrl-C here has the recording, and asked for no check.
    with contextlib.suppress(KeyboardInterrupt):
        with working("checking the calls of all ranks"):
            from commtrace.analyze import load

            lines = first_fault(load(trace, settings_of()))
        for line in lines:
            say(line, always=True)


def first_fault(frames: Frames) -> list[str]:
    """Return the first fault, its source line, and what happened on one rank only before it."""
    from commtrace.analyze import CATALOG

    problems = CATALOG["consistency"].function(frames)
    faults = problems[problems["is_fault"]].to_dict("records")
    if not faults:
        return []
    fault = faults[0]
    parted = CATALOG["divergences"].function(frames)
    is_of_fault = (parted["group"] == fault["group"]) & (parted["number"] == fault["number"])
    event = next((row for row in parted[is_of_fault].to_dict("records") if row["event"]), None)
    return [
        f"{fault['problem']}: {fault['explanation']}",
        *([f"  at {fault['source']}"] if fault["source"] else []),
        *([f"  rank {event['event_rank']}: {event['event']}"] if event else []),
    ]
