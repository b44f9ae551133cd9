"""Collectives with a known number in their group, which can be compared across ranks.

`numbered` returns the collectives of a part of a run; the other functions look up some collectives
of the whole run, or all calls of some ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import is_transfer, numbers

CollectiveKey = tuple[str, int]
"""Group and number in it."""


@cached_per_run
def numbered(frames: Frames) -> pd.DataFrame:
    """Return the collectives with a known number, in an added column `number`."""
    number = numbers(frames)
    is_known = ~is_transfer(frames) & (frames.comm["seq"] >= 0) & (number >= 0)
    return frames.comm[is_known].assign(number=number[is_known])


def calls_of(frames: Frames, wanted: Collection[CollectiveKey]) -> pd.DataFrame:
    """Return the calls of some collectives, with `number`, in the order of table `comm`."""
    return joined(frames.by_ranks(_calls_of, frozenset(wanted))).sort_index()


def _calls_of(part: Frames, wanted: Collection[CollectiveKey]) -> pd.DataFrame:
    calls = numbered(part)
    near = calls[calls["number"].isin({number for _, number in wanted})]
    keys = zip(near["group"], near["number"], strict=True)
    return near[np.array([key in wanted for key in keys], dtype=bool)]


def calls_at_or_after(frames: Frames, wanted: Iterable[CollectiveKey]) -> pd.DataFrame:
    """Return the calls of each of these collectives, and of the next collective in its group.

    The numbers may not be consecutive, since the trace can lack calls of ring buffers.
    """
    by_group: dict[str, set[int]] = {}
    for group, number in wanted:
        by_group.setdefault(group, set()).add(number)
    found = joined(frames.by_ranks(_at_or_after, by_group)).sort_index()
    # Each part returns its own next collective.
    keep = [
        _is_at_or_next(found[found["group"] == group]["number"], asked)
        for group, asked in by_group.items()
    ]
    return found[pd.concat(keep).reindex(found.index)] if keep else found


def _at_or_after(part: Frames, by_group: dict[str, set[int]]) -> pd.DataFrame:
    calls = numbered(part)
    calls = calls[calls["group"].isin([*by_group])]
    keep = [
        _is_at_or_next(of_group["number"], by_group[str(group)])
        for group, of_group in calls.groupby("group", observed=True)
    ]
    return calls[pd.concat(keep).reindex(calls.index)] if keep else calls


def _is_at_or_next(number: pd.Series, asked: set[int]) -> pd.Series:
    known = {int(number[number > each].min()) for each in asked if (number > each).any()}
    return number.isin(asked | known)


_OF_CALL = (
    "rank", "id", "kind", "group", "peer", "dtype", "payload_bytes", "issue_ns", "complete_ns",
    "step", "phase", "module", "thread", "source_file", "source_line", "source_function", "callers",
)  # fmt: skip


def calls_of_ranks(frames: Frames, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the calls of some ranks in order, with `number` and `is_transfer`."""
    found = frames.by_ranks(_of_ranks, tuple(ranks))
    return pd.concat(found).sort_values(["rank", "id"], kind="stable", ignore_index=True)


def _of_ranks(part: Frames, ranks: tuple[int, ...]) -> pd.DataFrame:
    own = part.ranks["rank"].isin(ranks).any() or not len(part.ranks)
    rows = part.comm.index[part.comm["rank"].isin(ranks)] if own else part.comm.index[:0]
    calls = pd.DataFrame({name: part.comm[name].loc[rows] for name in _OF_CALL})
    for name in calls.select_dtypes("category"):
        calls[name] = calls[name].astype(object)
    if rows.empty:
        return calls.assign(number=-1, is_transfer=False)
    return calls.assign(number=numbers(part).loc[rows], is_transfer=is_transfer(part).loc[rows])
