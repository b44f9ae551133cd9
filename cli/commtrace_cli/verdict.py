"""Verdict on a run that failed, for the command that has recorded it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from commtrace.settings import settings_of
from commtrace_cli.terminal import say, working

if TYPE_CHECKING:
    from commtrace.tracefile import Trace

MOST_ROWS = 500_000
"""Number of calls and operators up to which a run is checked unasked, which takes some seconds."""


def print_verdict(trace: Trace) -> None:
    """Print the verdict on the first fault of a run, unless the run is too large."""
    if trace.num_rows("comm") + trace.num_rows("ops") > MOST_ROWS:
        return
    # Ctrl-C here ends the check only: the recording is written.
    with contextlib.suppress(KeyboardInterrupt):
        with working("checking the calls of all ranks"):
            from commtrace.analyze import load
            from commtrace.analyze.consistency import consistency
            from commtrace.analyze.divergence import divergences, first_verdict

            frames = load(trace, settings_of())
            verdict = first_verdict(consistency(frames), divergences(frames))
        say(verdict, always=True)
