"""Summary of a trace file: origin of the recording, software, hosts, and missing parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.schema import TABLES
from commtrace.tracefile.joining.steps import EVERY, STEPS_FROM
from commtrace.tracefile.trace import Trace

_OWN_FIELDS = (
    *("world_size", "missing_ranks", "torn_ranks", "clock", "command", "created"),
    *(STEPS_FROM, EVERY),
)
KNOWN = ("payload_bytes", "complete_ns", "blocked_ns")
"""Columns of table `comm` whose known values are counted."""
_OF_SOFTWARE = ("torch", "python", "detail")


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its ranks, their devices, and the bound on its clock error (-1 if unknown)."""

    host: str
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    clock_error_ns: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts of a run file; unknown values are empty strings and -1.

    Attributes:
        torn_ranks: ranks that did not close their recording.
        steps_from: source of the steps (see `joining.steps`).
        every: 1 if all steps were recorded, 2 if every other step was, and so on.
        num_known: number of calls with a known value, by column of `KNOWN`.
        others: recorded facts that have no field here.
    """

    path: str
    num_bytes: int
    format_version: int
    command: str
    created: str
    torch: str
    python: str
    detail: str
    world_size: int
    recorded_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    torn_ranks: tuple[int, ...]
    hosts: tuple[Host, ...]
    clock: str
    start_ns: int
    duration_ns: int
    backends: tuple[str, ...]
    mesh_axes: tuple[str, ...]
    num_steps: int
    steps_from: str
    every: int
    num_rows: Mapping[str, int]
    num_known: Mapping[str, int]
    num_dropped: int
    num_ops_dropped: int
    num_fingerprints_dropped: int
    others: Mapping[str, Any]


def run_info(trace: Trace) -> RunInfo:
    """Return the facts of a trace."""
    ranks, groups, run = trace.tables["ranks"], trace.tables["groups"], trace.run
    starts = [start for start in ranks["start_ns"] if start >= 0]
    recorded = tuple(sorted(ranks["rank"]))
    named = (*_OWN_FIELDS, *_OF_SOFTWARE)
    return RunInfo(
        path=str(trace.path or ""),
        num_bytes=_num_bytes(trace.path),
        format_version=trace.version,
        command=str(run.get("command", "")),
        created=str(run.get("created", "")),
        torch=str(run.get("torch", "")),
        python=str(run.get("python", "")),
        detail=str(run.get("detail", "")),
        world_size=int(run.get("world_size", len(recorded))),
        recorded_ranks=recorded,
        missing_ranks=tuple(run.get("missing_ranks") or ()),
        torn_ranks=tuple(
            rank
            for rank, complete in zip(ranks["rank"], ranks["complete"], strict=True)
            if not complete and "imported_from" not in run
        ),
        hosts=_hosts(trace),
        clock=str(run.get("clock", "")),
        start_ns=min(starts, default=-1),
        duration_ns=_lasted(min(starts, default=-1), max(ranks["end_ns"], default=-1)),
        backends=_distinct(groups["backend"]),
        mesh_axes=_distinct(groups["mesh_axis"]),
        num_steps=len(set(trace.tables["steps"]["step"])),
        steps_from=str(run.get(STEPS_FROM, "")),
        every=int(run.get(EVERY, 1)),
        num_rows={name: trace.num_rows(name) for name in TABLES},
        num_known={name: sum(value >= 0 for value in trace.tables["comm"][name]) for name in KNOWN},
        num_dropped=sum(num for num in ranks["num_dropped"] if num > 0),
        num_ops_dropped=sum(num for num in ranks["num_ops_dropped"] if num > 0),
        num_fingerprints_dropped=sum(num for num in ranks["num_fingerprints_dropped"] if num > 0),
        others={name: value for name, value in run.items() if name not in named},
    )


def _lasted(start_ns: int, end_ns: int) -> int:
    return end_ns - start_ns if 0 <= start_ns <= end_ns else -1


def _distinct(values: Any) -> tuple[str, ...]:
    return tuple(sorted(set(values) - {""}))


def _hosts(trace: Trace) -> tuple[Host, ...]:
    ranks = trace.tables["ranks"]
    columns = (ranks[name] for name in ("host", "rank", "device", "clock_error_ns"))
    rows = sorted(zip(*columns, strict=True))
    return tuple(
        Host(
            host,
            tuple(rank for name, rank, _, _ in rows if name == host),
            _distinct(device for name, _, device, _ in rows if name == host),
            max(error for name, _, _, error in rows if name == host),
        )
        for host in dict.fromkeys(name for name, *_ in rows)
    )


def _num_bytes(path: Path | None) -> int:
    """Return the size of a file, or of all files in a folder of spools; -1 in memory."""
    if path is None:
        return -1
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
