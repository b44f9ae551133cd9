"""State of a run whose spools were merged into a file while it was watched."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from commtrace.live.life import DIED, ENDED
from commtrace.live.notes import problems_of_lives
from commtrace.live.snapshot import Snapshot
from commtrace.live.watch import Watch
from commtrace.tracefile import Trace

_UNKNOWN = -1


def dead_ranks(trace: Trace) -> Collection[int]:
    """Return the ranks of a run that died, without those that the launcher ended for others."""
    torn = set(trace.run.get("torn_ranks") or ())
    codes = zip(trace.tables["ranks"]["rank"], trace.tables["ranks"]["exit_code"], strict=True)
    return {rank for rank, code in codes if rank in torn and code != _UNKNOWN} or torn


def when_merged(snapshot: Snapshot, watch: Watch, dead: Collection[int]) -> Snapshot:
    """Return the last state of a run that is over.

    Args:
        snapshot: The state when its spools had gone.
        watch: The last state of its ranks.
        dead: Ranks that died, by the run file.
    """
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
        problems=tuple(problems_of_lives(watch, lives)),
        bytes_left=0,
        is_over=True,
    )
