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
    """Return the first fault in one line: the rank, its line and the cause."""
    from commtrace.analyze import CATALOG
    from commtrace.analyze.divergence import of_fault, verdict_of

    problems = CATALOG["consistency"].function(frames)
    faults = problems[problems["is_fault"]].to_dict("records")
    if not faults:
        return []
    fault = faults[0]
    parted = of_fault(CATALOG["divergences"].function(frames), fault)
    return [verdict_of(fault, next(iter(parted), None))]
