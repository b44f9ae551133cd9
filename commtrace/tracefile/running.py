"""Ranks that still run while their spools are read, so that a trace has only a part of them.

`read_trace` states them, and when it read them, as the facts `running_ranks` and `read_ns` of a
trace that it reads from a folder.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from commtrace.event import RankRow
from commtrace.tracefile.liveness import boot, has_process, process_age_s
from commtrace.tracefile.spool import SPOOL_SUFFIX, spool_name
from commtrace.tracefile.trace import Trace

RUNNING_RANKS = "running_ranks"
READ_NS = "read_ns"
"""Names of the facts."""

_PATIENCE_ELSEWHERE_S = 15.0  # attributes of files on network file systems are seconds old
_CLOCK_ERROR_S = 60.0
_START_ERROR_S = 1.0  # between a process's start by the system's ticks, and by its clock


def running_ranks(trace: Trace, folder: Path) -> list[int]:
    """Return the ranks of a trace, read from a folder of spools, that have not ended.

    On this machine their process is asked for; elsewhere, a rank that has just written still runs.
    """
    rows = [RankRow(*row) for row in trace.rows("ranks")]
    return [row.rank for row in rows if not row.complete and _is_running(row, folder)]


def _is_running(row: Any, folder: Path) -> bool:
    if (row.host, row.boot) == (socket.gethostname(), boot()):
        own_start_s = (row.start_ns - row.clock_offset_ns) / 1e9
        started_s = time.time() - process_age_s(row.pid)
        # A process that started after the recording has a reused process id.
        return has_process(row.pid) and started_s <= own_start_s + _START_ERROR_S
    signs_s = [max(row.end_ns, row.alive_ns) / 1e9 + _CLOCK_ERROR_S]
    spools = folder.glob(f"{spool_name(row.rank).removesuffix(SPOOL_SUFFIX)}*{SPOOL_SUFFIX}")
    signs_s.append(max((path.stat().st_mtime for path in spools), default=0.0))
    return time.time() - min(signs_s) <= _PATIENCE_ELSEWHERE_S
