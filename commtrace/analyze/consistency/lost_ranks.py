"""Ranks that a signal or an exception ended before the others, which then failed in their calls.

A call fails on the others once the connection to such a rank is closed. It has then ended as far as
the recording shows, so that nobody is missing from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from commtrace.analyze.consistency.coverage import source_of
from commtrace.analyze.consistency.ends import KILLED, RAISED, End, ends
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.consistency.problem import Problem, numbers_text
from commtrace.analyze.frame import Frames


def lost_ranks(frames: Frames) -> Iterator[Problem]:
    """Yield the ranks that a signal ended, or else the first that an exception ended.

    An exception that all ranks raised at one line is no fault of their communication.
    """
    found = ends(frames)
    killed = [each for each in found.values() if each.state == KILLED]
    raised = sorted(
        (each for each in found.values() if each.state == RAISED), key=lambda each: each.at_ns
    )
    is_alike = len(raised) == len(found) and len({each.source for each in raised}) == 1
    for end in killed or ([] if is_alike else raised[:1]):
        yield _problem(frames, end)


def _problem(frames: Frames, end: End) -> Problem:
    calls = calls_of_ranks(frames, [end.rank])
    last = calls.iloc[-1] if len(calls) else None
    after = ""
    if last is not None:
        at = f" at {source_of(last)}" if source_of(last) else ""
        after = f" Its last call was {last['kind']}{at}."
    return Problem(
        problem="lost rank",
        is_fault=True,
        ranks=numbers_text([end.rank]),
        found=end.text,
        source=end.source or ("" if last is None else source_of(last)),
        explanation=f"Rank {end.rank} {end.sentence_part()}, and the others then failed.{after}",
        at_ns=-1 if last is None else int(last["issue_ns"]),
    )
