"""A trace by its path, for the commands that show one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.settings import settings_of
from commtrace_cli.terminal import working

if TYPE_CHECKING:
    from commtrace.analyze import Frames


def load_events(path: Path) -> Frames:
    """The tables of the trace at `path`.

    Raises a TraceError where it is none, or holds nothing to show.
    """
    settings = settings_of()
    with working(f"reading {path}"):
        from commtrace.tracefile import read_trace, require_events

        trace = require_events(read_trace(path))
        from commtrace.analyze import load  # late, for it takes longer than refusing

        return load(trace, settings)
