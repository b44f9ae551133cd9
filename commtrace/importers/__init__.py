"""Traces that others recorded, as traces of this project: all analyses serve them.

    trace = import_trace(["dumps/"])          flight-recorder dumps, JSON or pickle
    trace = import_trace(["rank0.json.gz", "rank1.json.gz"])        traces of torch.profiler

What a source does not have stays unknown, and `trace.run["lacks"]` says what that is. Each kind of
source is a file of its own here; docs/exchange.md says which of its fields becomes which column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from commtrace.importers.documents import (
    FLIGHT_RECORDER,
    PROFILER,
    Document,
    documents_of,
)
from commtrace.importers.flight_recorder import read_dumps
from commtrace.importers.kineto import read_profiles
from commtrace.importers.recorded import RankRecord
from commtrace.tracefile import Trace, join

__all__ = ["import_trace"]

Reader = Callable[[Sequence[Document]], tuple[list[RankRecord], list[str]]]

_READERS: dict[str, Reader] = {PROFILER: read_profiles, FLIGHT_RECORDER: read_dumps}


def import_trace(sources: Iterable[Path | str]) -> Trace:
    """The trace that files of other tools hold, one of each rank, or folders with them.

    Raises a TraceError that names the file which cannot be read, and says what is in it.
    """
    documents = documents_of(sources)
    source = documents[0].format
    records, lacks = _READERS[source](documents)
    trace = join([record.spool() for record in records])
    facts = {
        "imported_from": source,
        "imported_files": len(documents),
        "lacks": lacks,
        "torn_ranks": [],
    }
    if len(records) > 1 and not all(record.host for record in records):
        facts["clock"] = "wall clocks of hosts that the files do not name"
    return replace(trace, run={**trace.run, **facts})
