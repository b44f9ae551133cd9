"""State of a run whose spools were merged into a file while it was watched."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from commtrace.live.life import DIED, ENDED
from commtrace.live.problems import of_lives
from commtrace.live.snapshot import Snapshot
from commtrace.live.watch import Watch
from commtrace.tracefile import Trace, read_trace

_UNKNOWN = -1


def dead_ranks(trace: Trace) -> Collection[int]:
    """Return the ranks of a run that died, without those that the launcher ended for others."""
    torn = set(trace.run.get("torn_ranks") or ())
    columns = (trace.tables["ranks"][name] for name in ("rank", "exit_code"))
    codes = dict(zip(*columns, strict=True))
    failed = {rank for rank, code in codes.items() if code not in (0, _UNKNOWN)}
    return torn and (torn & failed or failed or torn)


def when_merged(snapshot: Snapshot, watch: Watch, file: Path) -> Snapshot:
    """Return the last state of a run that is over.

    If ranks died, the first problem is the fault that `commtrace check` finds: its ranks may be
    others than those that died of it.

    Args:
        snapshot: The state when its spools had gone.
        watch: The last state of its ranks.
        file: The run file.
    """
    dead = dead_ranks(read_trace(file))
    lives = {rank: DIED if rank in dead else ENDED for rank in {*watch.ranks, *dead}}
    return replace(
        snapshot,
        ranks=tuple(
            replace(each, life=lives[each.rank], call="", is_blocked=False, is_hanging=False)
            if lives[each.rank] == ENDED
            else replace(each, life=DIED, is_hanging=False)
            for each in snapshot.ranks
        ),
        groups=(),
        problems=tuple(of_lives(watch, lives, file)),
        bytes_left=0,
        is_over=True,
    )
