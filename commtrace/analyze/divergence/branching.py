"""The statements by which two ranks parted, from the calls that they made."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from commtrace.analyze.divergence.branches import LOOPS, Branch, branch_between, function_around
from commtrace.analyze.divergence.places import line_of_module, place_of
from commtrace.analyze.divergence.sequences import Parting
from commtrace.analyze.frame import Frames
from commtrace.analyze.source_lines import lines_of_file

_UNKNOWN = -1


def branch_text(
    frames: Frames, calls: pd.DataFrame, parted: Parting, ranks: tuple[int, int]
) -> str:
    """Return the statements by which two ranks parted, with their lines; empty if not known.

    Args:
        frames: The run.
        calls: Calls of both ranks, as `calls_of_ranks` returns them.
        parted: The calls at which they part.
        ranks: The rank that did something else, and the other one.
    """
    three = (parted.common[0] if parted.common else None, parted.own, parted.others)
    bases = [call for call in three if call is not None and call["source_file"]]
    if parted.own is None and parted.others is None:
        return ""
    # First where both calls are in one function, or are made from there.
    for may_leave in (False, True):
        for base in bases:
            found = _branch_in(frames, base, three, may_leave=may_leave)
            on_its_way = _is_on_its_way(frames, parted, ranks[0])
            if found and not (on_its_way and all(each.keyword in LOOPS for each in found)):
                return ", ".join(
                    f"`{each.text}` ({base['source_file']}:{each.line})" for each in found
                )
    return ""


def _branch_in(
    frames: Frames,
    base: pd.Series,
    calls: tuple[pd.Series | None, ...],
    *,
    may_leave: bool,
) -> Sequence[Branch]:
    """Return the branch between two calls in the function of one, if they are found there.

    A call that is not can also be one after the function was left.
    """
    _, own_call, other_call = calls
    every_line = lines_of_file(frames, str(base["source_file"]))
    lines = function_around(every_line, int(base["source_line"]))
    common, own, others = (place_of(call, base, lines) for call in calls)
    if own == others:
        lines = every_line
        own = line_of_module(own_call, other_call, lines)
        others = line_of_module(other_call, own_call, lines)
    if own == others or (None in (own, others) and not may_leave):
        return ()
    places = (_UNKNOWN if place is None else place for place in (common, own, others))
    return branch_between(lines, *places)


def _is_on_its_way(frames: Frames, parted: Parting, rank: int) -> bool:
    """Return whether a rank made no further call, but had not ended either."""
    ended = bool(frames.ranks.loc[frames.ranks["rank"] == rank, "complete"].all())
    return parted.own is None and not ended
