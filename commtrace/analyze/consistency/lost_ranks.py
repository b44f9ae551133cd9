"""Ranks that are lost or stuck where no call shows it.

If a signal or an exception ends a rank, the calls of the others fail when the connection is closed.
The recording shows the failed call as ended, so no rank is reported as missing from it. Nor is a
rank that others wait for in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commtrace.analyze.consistency.coverage import source_of
from commtrace.analyze.consistency.ends import (
    ALIVE,
    ENDED,
    KILLED,
    RAISED,
    SILENT,
    STUCK,
    End,
    ends,
)
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.consistency.problem import Problem, fewer_of, numbers_text
from commtrace.analyze.run.frame import Frames
from commtrace.schema import FATAL, WAITING_KINDS
from commtrace.units import counted, text_of_ranks

_AT_LINE = (STUCK, RAISED)
_IDLE = (STUCK, SILENT, ALIVE, ENDED)
_MOST_LINES = 3


def lost_ranks(frames: Frames) -> Iterator[Problem]:
    """Yield the ranks that a signal ended, or else the first rank that an exception ended.

    An exception that all ranks raised at the same line is not a communication fault.
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
    lines = sorted({each.source for each in others if each.state in _AT_LINE and each.source})
    meanwhile = f"; others are at {', '.join(lines)}" if 0 < len(lines) <= _MOST_LINES else ""
    return Problem(
        problem="lost rank",
        is_fault=True,
        ranks=numbers_text([end.rank]),
        found=end.text,
        source=end.source or ("" if last is None else source_of(last)),
        explanation=f"Rank {end.rank} {end.sentence_part()}{after}{meanwhile}.",
        at_ns=-1 if last is None else int(last["issue_ns"]),
    )


def stalled_ranks(frames: Frames) -> Iterator[Problem]:
    """Yield the ranks that are in no call while all others wait for the store, or for each other.

    As all others wait, it must be these ranks that they wait for. If one of them has ended, either
    it ended too early, or the others wait once too often: the fewer are blamed.
    """
    if not frames.host_events["kind"].isin(WAITING_KINDS).any():
        return  # without the pass over all calls that `ends` makes
    found = ends(frames)
    waiting = [each for each in found.values() if each.is_waiting]
    idle = [each for each in found.values() if not each.is_waiting]
    if not (waiting and idle) or any(each.state not in _IDLE for each in idle):
        return
    blamed, is_one_of = [each.rank for each in idle], len(idle) > 1
    if any(each.state == ENDED for each in idle):
        blamed, is_one_of = fewer_of(blamed, [each.rank for each in waiting])
    text = "; ".join(f"{text_of_ranks([each.rank])} {each.sentence_part()}" for each in idle)
    first = min(waiting, key=lambda each: each.at_ns)
    yield Problem(
        problem="missing call",
        is_fault=True,
        ranks=numbers_text(blamed),
        is_one_of_ranks=is_one_of,
        expected=f"by {text_of_ranks([each.rank for each in idle])}",
        found="none",
        source=idle[0].source,
        explanation=f"{text[:1].upper()}{text[1:]}; {text_of_ranks([first.rank])} "
        f"{first.sentence_part()}{_and_others(waiting)}.",
        at_ns=first.at_ns,
    )


def _and_others(waiting: Sequence[End]) -> str:
    num = len(waiting) - 1
    return f", and {counted(num, 'other rank')} too" if num else ""
