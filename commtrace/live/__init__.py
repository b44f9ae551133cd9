"""A run as it is now: incremental readers of its growing spools, and the state derived from them.

    observer = Observer(Watch(Path("RUN.comm")))
    snapshot = observer.refresh()       # each second, say

    spools ─> tail ─> Watch ─> Observer ─> Snapshot
     folder    batches  arrivals, rates,    problems: the consistency check on the tail
                        step_times, hosts

`recent` reads the last steps of a run for the analyses of finished runs.

Nothing that is read is trusted, and the state is bounded: the state of a rank does not grow with
the length of its run, except for the names and call sites in its spool.
"""

from __future__ import annotations

from commtrace.live.observe import HANG_S, STRAGGLER_SHARE, WINDOW_S, Observer
from commtrace.live.snapshot import Snapshot
from commtrace.live.watch import Watch

__all__ = ["HANG_S", "STRAGGLER_SHARE", "WINDOW_S", "Observer", "Snapshot", "Watch"]
