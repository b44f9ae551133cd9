"""Outline of a rank's recording: all but its events, as far as ranks must know of each other.

A folder of spools may be larger than the memory. What joins the recordings (which of them are the
latest run, their clocks, groups and steps) is decided on outlines, which stay in memory; the events
are read later, one rank at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.tracefile.spool import (
    FOUND_STEPS,
    SMALL_RANK_TABLES,
    SPOOL_SUFFIX,
    SPOOL_TABLES,
    Spool,
)
from commtrace.tracefile.trace import Columns

SMALL_TABLES = ("groups", *SMALL_RANK_TABLES, FOUND_STEPS)
"""Tables that an outline has."""

OUTLINE_COLUMNS: dict[str, tuple[str, ...]] = {
    **{name: tuple([column.name for column in SPOOL_TABLES[name]]) for name in SMALL_TABLES},
    "comm": ("rank", "issue_ns", "complete_ns"),
    "ops": ("rank", "start_ns"),
    "kernels": ("rank", "start_ns", "launch_ns"),
    "fingerprints": ("rank", "at_ns"),
    "syncs": ("rank", "at_ns"),
}
"""Columns of a spool that its outline is made of, by table."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Recording of a rank without its events.

    Attributes:
        facts: as in the spool.
        tables: groups and steps.
        is_truncated: the last batch was cut off.
        path: the file, None in memory.
        parts: the files of its segments, if it has several.
        place: place of the recording in the file.
        num_calls: number of rows of table `comm`.
        last_ns: time of the last event, if the facts do not state the end.
    """

    facts: dict[str, Any]
    tables: Mapping[str, Columns]
    is_truncated: bool
    path: Path | None = None
    parts: tuple[Path, ...] = ()
    place: int = 0
    num_calls: int = 0
    last_ns: int = -1


SpoolOrOutline = Spool | Outline
"""A recording of a rank, with its events or without."""


def outline_of(spool: Spool, place: int = 0) -> Outline:
    """Return the outline of a spool, which has at least the columns of `OUTLINE_COLUMNS`."""
    return Outline(
        facts=spool.facts,
        tables={name: spool.tables[name] for name in SMALL_TABLES if name in spool.tables},
        is_truncated=spool.is_truncated,
        path=spool.path,
        parts=spool.parts,
        place=place,
        num_calls=spool.num_calls,
        last_ns=spool.last_ns,
    )


def start_ns(recording: SpoolOrOutline) -> int:
    """Return the beginning of a recording."""
    return recording.facts["start_ns"]


def end_ns(recording: SpoolOrOutline) -> int:
    """Return the end of a recording, or the time of its last event."""
    return recording.facts.get("end_ns") or recording.last_ns


def rank_of(recording: SpoolOrOutline) -> int:
    """Return the rank of a recording."""
    return recording.facts["rank"]


def files_of(recording: SpoolOrOutline) -> Sequence[Path]:
    """Return the files of a recording; none in memory."""
    return recording.parts or [each for each in [recording.path] if each is not None]


def is_spool(path: Path) -> bool:
    """Return whether a part of a run is a spool by its name, or else a run file."""
    return path.suffix == SPOOL_SUFFIX
