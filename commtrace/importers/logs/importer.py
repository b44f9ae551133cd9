"""Importer of text logs: lines of torch's watchdog and of NCCL, of one or more ranks.

    text ─> lines (log_lines) ─> progress and calls in flight (watchdog)
                              └> calls (nccl)

Other lines are ignored. If a log has both, NCCL's lines have the calls, including those that timed
out, and the watchdog's the progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from commtrace.errors import NotATraceError
from commtrace.importers.input_files import Document
from commtrace.importers.log_lines import LogLine, NcclCall, NcclInit, log_lines
from commtrace.importers.logs.nccl import NcclLog, add_nccl
from commtrace.importers.logs.watchdog import WatchdogLog, add_watchdog
from commtrace.importers.rank_record import Imported, RankRecord
from commtrace.tracefile.reading import Allowance

_BYTES_PER_LINE = 600


class LogFile(NamedTuple):
    """The lines of a file that are read."""

    lines: list[LogLine]


def log_of(document: Document) -> LogFile:
    """Return the lines of a file.

    Raises:
        OversizedTraceError: it has more lines than a file of its size may.
    """
    allowance = Allowance(f"cannot import {document.path}", len(document.content))
    lines: list[LogLine] = []
    for line in log_lines(document.content):
        allowance.take(_BYTES_PER_LINE, "lines")
        lines.append(line)
    return LogFile(lines)


def read_logs(documents: Sequence[Document]) -> Imported:
    """Import logs, and list the missing information.

    The contents of the documents are those that `log_of` returns.

    Raises:
        NotATraceError: no line states its rank.
    """
    watchdog, nccl = WatchdogLog(), NcclLog()
    for document in documents:
        file: LogFile = document.content
        for line in file.lines:
            if isinstance(line, (NcclCall, NcclInit)):
                nccl.add(document, line)
            else:
                watchdog.add(document.path, document.rank_in_name, line)
    records: dict[int, RankRecord] = {}
    sources, lacks = [], []
    if nccl.num_calls:
        source, own = add_nccl(records, nccl)
        sources.append(source)
        lacks += own
    if watchdog.paths:
        sources.append("stated by the lines of the watchdog")
        lacks += add_watchdog(records, watchdog, has_calls=bool(nccl.num_calls))
    if not records:
        raise NotATraceError(
            "cannot import the logs",
            found="no line that states the rank of its process",
            why="calls and progress belong to ranks",
            attempt="name the files after their ranks, `rank0.log`, `rank1.log`, ...",
        )
    ordered = [records[rank] for rank in sorted(records)]
    facts: dict[str, Any] = {"first_number": 1}  # as torch's SeqNum
    if watchdog.times and len(ordered) > 1:
        facts["clock"] = "wall clocks of unnamed hosts"
    if not nccl.num_calls:
        ranks = [record.rank for record in ordered]
        facts |= {"partial_dumps": ranks, "unsure_ranks": ranks}
    return Imported(ordered, "; ".join(sources), lacks, facts=facts)
