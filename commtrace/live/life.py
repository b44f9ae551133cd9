"""Signs of life of ranks, and the state that follows: running, ended, died, silent.

A recording gives a sign of life when its file changes: by a batch, or by the heartbeat, which sets
the time of the file once a second. Ages are measured by the watcher's own clock, so offsets of
other clocks do not matter. On its own host, the watcher also looks for the process.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from commtrace.live.folder import FollowedRecording
from commtrace.live.tail import number_fact, text_fact
from commtrace.tracefile.liveness import BEAT, boot, has_process, process_age_s

RUNNING, ENDED, DIED, STOPPED, SILENT, QUIET, GONE = (
    "running", "ended", "died", "stopped", "silent", "quiet", "gone",
)  # fmt: skip

MEANINGS = {
    RUNNING: "there was a sign of life",
    ENDED: "the recording was closed",
    DIED: "the process is gone, and the recording was not closed",
    STOPPED: "the process is there but writes nothing: it is stopped, or holds Python's lock",
    SILENT: "no sign of life: the process died, its node stopped writing, or the folder is out of "
    "reach",
    QUIET: "no sign of life, which this recording does not promise",
    GONE: "the files of the recording were removed",
}
"""States of a rank, and their meanings."""

ASLEEP = (DIED, SILENT, GONE, STOPPED)
"""States of a rank that stopped writing before it ended."""

OVER = (ENDED, DIED, GONE)
"""States of ranks that write nothing any more."""

_PATIENCE_HERE_S = 3.0
_PATIENCE_ELSEWHERE_S = 15.0  # attributes of files on network file systems are seconds old
_CLOCK_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class System:
    """The system on which the watcher runs; tests replace it."""

    host: str = field(default_factory=socket.gethostname)
    boot: str = field(default_factory=boot)
    has_process: Callable[[int], bool] = has_process
    process_age_s: Callable[[int], float] = process_age_s


def life_of(recording: FollowedRecording, at_s: float, system: System) -> str:
    """Return the state of a recording's rank at a time of the watcher's clock."""
    facts = recording.facts
    if recording.is_complete or recording.is_done:
        return ENDED
    if recording.is_gone:
        return GONE
    age_s = at_s - recording.changed_at_s
    pid = number_fact(facts, "pid")
    here = text_fact(facts, "host") == system.host and text_fact(facts, "boot") == system.boot
    if age_s <= (_PATIENCE_HERE_S if here else _PATIENCE_ELSEWHERE_S):
        return RUNNING
    promises = number_fact(facts, BEAT) > 0
    if here and pid > 0:
        is_there = system.has_process(pid) and (
            # A process that started after the last sign has a reused process id.
            system.process_age_s(pid) > age_s - _CLOCK_TICK_S
        )
        if not is_there:
            return DIED
        return STOPPED if promises else RUNNING
    return SILENT if promises else QUIET
