"""Importers of traces recorded by other tools; all analyses accept the result.

    trace = import_trace(["dumps/"])          flight-recorder dumps, JSON or pickle
    trace = import_trace(["rank0.json.gz", "rank1.json.gz"])        traces of torch.profiler
    trace = import_trace(["nccl-inspector-42/"])        logs of NCCL Inspector
    trace = import_trace(["ras-1.json", "ras-2.json"])        snapshots of NCCL RAS
    trace = import_trace(["et_rank0.json", "et_rank1.json"])        torch's ExecutionTraces
    trace = import_trace(["et/"])        execution traces of MLCommons Chakra
    trace = import_trace(["report.sqlite"])        `nsys export --type sqlite`
    trace = import_trace(["train.log"])        lines of torch's watchdog, or of NCCL_DEBUG=INFO

Values that a source lacks stay unknown and are listed in `trace.run["lacks"]`. Each kind of source
has its own file here; docs/exchange.md maps its fields to columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from commtrace.errors import UsageError
from commtrace.importers.chakra.files import trace_of
from commtrace.importers.chakra.importer import read_chakra
from commtrace.importers.cycle_collection import no_cycle_collection
from commtrace.importers.execution_trace import execution_of, read_execution_traces
from commtrace.importers.flight_recorder.entries import dump_of
from commtrace.importers.flight_recorder.importer import read_dumps
from commtrace.importers.input_files import (
    CHAKRA,
    EXECUTION,
    FLIGHT_RECORDER,
    INSPECTOR,
    LOG,
    NSYS,
    PROFILER,
    RAS,
    Document,
    documents_of,
)
from commtrace.importers.inspector.importer import read_inspector
from commtrace.importers.inspector.lines import inspector_file_of
from commtrace.importers.kineto.importer import read_profiles
from commtrace.importers.logs.importer import log_of, read_logs
from commtrace.importers.nsys import read_exports
from commtrace.importers.rank_record import Imported, non_members
from commtrace.importers.ras.importer import read_snapshots
from commtrace.importers.ras.snapshots import snapshot_of
from commtrace.tracefile import Trace, join, read_trace
from commtrace.tracefile.reading import reading

__all__ = ["import_trace"]

_JOINED = (INSPECTOR, FLIGHT_RECORDER)

Reader = Callable[[Sequence[Document]], Imported]

_READERS: dict[str, Reader] = {
    PROFILER: read_profiles,
    FLIGHT_RECORDER: read_dumps,
    INSPECTOR: read_inspector,
    RAS: read_snapshots,
    LOG: read_logs,
    EXECUTION: read_execution_traces,
    NSYS: read_exports,
    CHAKRA: read_chakra,
}
_REDUCED = {
    FLIGHT_RECORDER: dump_of,
    INSPECTOR: inspector_file_of,
    RAS: snapshot_of,
    LOG: log_of,
    EXECUTION: execution_of,
    CHAKRA: trace_of,
}


@no_cycle_collection()
def import_trace(sources: Iterable[Path | str], recording: Path | str | None = None) -> Trace:
    """Import files of other tools, one per rank, or folders with them.

    Args:
        sources: The files and folders.
        recording: Recording of the same run. The result is that recording, with the times on
            devices that the files have for its calls; `trace.run["joined"]` says which.

    Raises:
        TraceError: names the file that cannot be read, and its contents.
    """
    from commtrace.tracefile.validate import validated  # imported late, since it loads numpy

    documents, left_out = documents_of(sources, _REDUCED)
    source = documents[0].format
    recorded = None if recording is None else read_trace(Path(recording))
    summary = f"cannot import {_named([document.path for document in documents])}"
    with reading(summary):
        if source == INSPECTOR:
            imported = read_inspector(documents, processes_of(recorded) if recorded else {})
        else:
            imported = _READERS[source](documents)
        if recorded is not None:
            return validated(_joined(recorded, imported, source, left_out, summary), summary)
        trace = join([record.spool() for record in imported.records])
        facts = {
            "imported_from": source,
            "imported_files": len(documents),
            "ranks_from": "; ".join([imported.ranks_from, *non_members(imported.records)]),
            "lacks": [*left_out, *imported.lacks],
            **({"kernels": imported.kernels} if imported.kernels else {}),
            "torn_ranks": [],
            **imported.facts,
        }
        if len(documents) > 1 and not all(record.host for record in imported.records):
            facts["clock"] = "wall clocks of unnamed hosts"
        return validated(replace(trace, run={**trace.run, **facts}), summary)


def processes_of(recording: Trace) -> dict[tuple[str, int], int]:
    """Return the ranks of a recording by host and process id, for processes with a single rank."""
    ranks = recording.tables["ranks"]
    own = list(zip(ranks["host"], ranks["pid"], strict=True))
    num = Counter(own)
    return {each: rank for each, rank in zip(own, ranks["rank"], strict=True) if num[each] == 1}


def _joined(
    recording: Trace, imported: Imported, source: str, left_out: list[str], summary: str
) -> Trace:
    from commtrace.importers.device_times.joining import (
        join_timings,  # imported late, since it loads numpy
    )

    if imported.timings is None:
        raise UsageError(
            summary,
            found=f"files of {source} to be joined to a recording",
            why=f"only {', '.join(_JOINED)} number their calls as recordings do",
            attempt="import them without --recording",
        )
    joined = join_timings(recording, imported.timings(), source)
    notes = [f"ranks of its files: {imported.ranks_from}", *joined.notes]
    notes += [f"not joined: {each}" for each in left_out]
    return replace(joined.trace, run={**joined.trace.run, "joined": notes})


def _named(paths: Sequence[Path]) -> str:
    first = ", ".join(map(str, paths[:3]))
    return f"{first} and {len(paths) - 3} more files" if len(paths) > 3 else first
