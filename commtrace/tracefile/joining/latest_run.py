"""Choice of the recordings of the latest run among those that a folder holds.

A recording that is there several times counts once. Recordings of earlier runs, such as attempts
before a restart, are named so that they can be reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from commtrace.tracefile.outline import SpoolOrOutline, end_ns, files_of, rank_of, start_ns

# Ranks of a file that does not state their clocks began as stated within this time.
_SAME_START_NS = 10_000_000

R = TypeVar("R", bound=SpoolOrOutline)


def latest_run(recordings: Sequence[R]) -> tuple[list[R], list[str]]:
    """Return the recordings of the latest run, and the names of the files that are left out."""
    chosen, others = _latest(*_of_one_size(*_of_latest_run(_distinct(recordings))))
    return chosen, sorted({name for each in others for name in _names(each)})


def _distinct(spools: Sequence[R]) -> list[R]:
    """Return each recording once, the most complete of several copies."""
    by_process: dict[tuple[object, ...], list[R]] = {}
    for spool in sorted(spools, key=_completeness, reverse=True):
        key = (rank_of(spool), spool.facts["host"], spool.facts["pid"])
        kept = by_process.setdefault(key, [])
        if not any(_are_copies(spool, each) for each in kept):
            kept.append(spool)
    distinct = {id(spool) for kept in by_process.values() for spool in kept}
    return [spool for spool in spools if id(spool) in distinct]


def _are_copies(one: SpoolOrOutline, other: SpoolOrOutline) -> bool:
    """Return whether two recordings of a process are the same."""
    first, second = sorted((one, other), key=start_ns)
    begun_ns = start_ns(second)
    return begun_ns - start_ns(first) <= _SAME_START_NS and begun_ns <= end_ns(first)


def _completeness(spool: SpoolOrOutline) -> tuple[bool, int]:
    return bool(spool.facts.get("complete")), spool.num_calls


def _of_latest_run(spools: Sequence[R]) -> tuple[list[R], list[R]]:
    """Split off the spools of runs to which the launcher gave another identity."""
    id_of = {id(spool): spool.facts["run"].get("run_id", "") for spool in spools}
    latest = max((each for each in spools if id_of[id(each)]), key=start_ns, default=None)
    accepted = ("", id_of[id(latest)]) if latest else ("",)
    kept = [spool for spool in spools if id_of[id(spool)] in accepted]
    return kept, [spool for spool in spools if id_of[id(spool)] not in accepted]


def _of_one_size(spools: list[R], left_out: list[R]) -> tuple[list[R], list[R]]:
    """Split off spools that ended before the latest began and are of another number of ranks.

    No rank needs to be repeated for that. Ranks of a run form a group together, at one time.
    """
    if not spools:
        return spools, left_out
    latest = max(spools, key=start_ns)
    kept, earlier = [], list(left_out)
    for spool in spools:
        sizes = {_size_of_group(spool), _size_of_group(latest)} - {0}
        is_earlier = end_ns(spool) < start_ns(latest)
        (earlier if is_earlier and len(sizes) > 1 else kept).append(spool)
    return kept, earlier


def _size_of_group(spool: SpoolOrOutline) -> int:
    """Return the number of ranks of the process's group; 0 if it had none, or that is unknown."""
    run = spool.facts["run"]
    return run.get("world_size", 0) if run.get("process_group", "none") != "none" else 0


def _latest(spools: list[R], left_out: list[R]) -> tuple[list[R], list[R]]:
    """Split off the spools of an earlier run or attempt.

    A repeated rank shows that the earlier run is over: spools that ended before belong to it.
    """
    last = {rank_of(spool): start_ns(spool) for spool in sorted(spools, key=start_ns)}
    spools = [spool for spool in spools if not _has_ranks(spool, last[rank_of(spool)])]
    again = {rank_of(spool) for spool in spools if start_ns(spool) < last[rank_of(spool)]}
    begun = min((last[rank] for rank in again), default=0)
    latest, earlier = [], list(left_out)
    for spool in spools:
        newest = last[rank_of(spool)]
        is_earlier = end_ns(spool) < (newest if start_ns(spool) < newest else begun)
        (earlier if is_earlier else latest).append(spool)
    return latest, earlier


def _has_ranks(spool: SpoolOrOutline, last_start_ns: int) -> bool:
    """Return whether a spool's process communicated nothing and started the rank itself."""
    is_silent = spool.facts["run"].get("process_group") == "none"
    return is_silent and start_ns(spool) < last_start_ns <= end_ns(spool)


def _names(spool: SpoolOrOutline) -> list[str]:
    """Return the names of a recording's files."""
    return [path.name for path in files_of(spool)] or [""]
