"""Ranks ended by a signal or an exception before the others, whose calls then failed.

A call fails on the other ranks when the connection to the lost rank is closed. The recording shows
the failed call as ended, so no rank is reported as missing from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commtrace.analyze.consistency.coverage import source_of
from commtrace.analyze.consistency.ends import KILLED, RAISED, STUCK, End, ends
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.consistency.problem import Problem, numbers_text
from commtrace.analyze.frame import Frames
from commtrace.schema import FATAL

_MOST_LINES = 3


def lost_ranks(frames: Frames) -> Iterator[Problem]:
    """Yield the ranks that a signal ended, or else the first rank that an exception ended.

    An exception that all ranks raised at one line is no fault of their communication.
    """
    has_signals = bool((frames.ranks["exit_code"] < -1).any())
    if not has_signals and not (frames.host_events["kind"] == FATAL).any():
        return  # without the pass over all calls that `ends` makes
    found = ends(frames)
    killed = [each for each in found.values() if each.state == KILLED or each.until]
    raised = sorted(
        (each for each in found.values() if each.state == RAISED), key=lambda each: each.at_ns
    )
    is_alike = len(raised) == len(found) and len({each.source for each in raised}) == 1
    for end in killed or ([] if is_alike else raised[:1]):
        yield _problem(frames, end, [each for each in found.values() if each is not end])


def _problem(frames: Frames, end: End, others: Sequence[End]) -> Problem:
    calls = calls_of_ranks(frames, [end.rank])
    last = calls.iloc[-1] if len(calls) else None
    after = ""
    if last is not None:
        after = f", after {last['kind']}" + (f" at {source_of(last)}" if source_of(last) else "")
    stuck = sorted({each.source for each in others if each.state == STUCK and each.source})
    meanwhile = f"; others are at {', '.join(stuck)}" if 0 < len(stuck) <= _MOST_LINES else ""
    return Problem(
        problem="lost rank",
        is_fault=True,
        ranks=numbers_text([end.rank]),
        found=end.text,
        source=end.source or ("" if last is None else source_of(last)),
        explanation=f"Rank {end.rank} {end.sentence_part()}{after}{meanwhile}.",
        at_ns=-1 if last is None else int(last["issue_ns"]),
    )
