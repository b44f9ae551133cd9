"""Absences in a run that is still running when it is read: missing calls may still arrive.

Ranks write four times a second, and are read in turn. A recent call is therefore missing on ranks
that have not arrived yet, and on ranks whose spool was read earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from commtrace.analyze.consistency.problem import Problem
from commtrace.analyze.run.frame import Frames

WAITS_NS = 5_000_000_000
"""Age of a call up to which running ranks may still arrive; `commtrace watch` uses the same."""
BEGINS_NS = 60_000_000_000
"""Age of a run up to which its ranks may still begin to record."""

_MAY_ARRIVE = ("missing call", "extra call", "deadlock", "tag", "transfer")
_ADDED = " The run was still running when it was read: the calls may still arrive."


def without_recent(frames: Frames, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems of a run; recent absences are not faults while it is running."""
    now_ns = int(frames.run.get("read_ns", -1))
    if not frames.run.get("running_ranks") or now_ns < 0 or frames.ranks.empty:
        yield from problems
        return
    begin_ns = int(frames.ranks["start_ns"].min())
    for each in problems:
        is_recent = (each.problem in _MAY_ARRIVE and each.at_ns >= now_ns - WAITS_NS) or (
            each.problem == "missing rank" and begin_ns >= now_ns - BEGINS_NS
        )
        if each.is_fault and is_recent:
            yield replace(
                each,
                is_fault=False,
                is_one_of_ranks=False,
                ranks="",
                explanation=each.explanation + _ADDED,
            )
        else:
            yield each
