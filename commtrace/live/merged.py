"""State of a run whose spools were merged into a file while it was watched."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from commtrace.live.life import DIED, ENDED
from commtrace.live.notes import problems_of_lives
from commtrace.live.snapshot import Snapshot
from commtrace.live.watch import Watch


def when_merged(snapshot: Snapshot, watch: Watch, torn: Collection[int]) -> Snapshot:
    """Return the last state of a run that is over.

    Args:
        snapshot: The state when its spools had gone.
        watch: The last state of its ranks.
        torn: Ranks whose recording was not closed, by the run file: they died.
    """
    lives = {rank: DIED if rank in torn else ENDED for rank in {*watch.ranks, *torn}}
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
