"""Sums over calls with some unknown values: known, unknown, or partly known.

An unknown value is negative. A sum of unknown values only is unknown, never 0; without any call it
is 0. A partly known sum stays a number, shown beside the number of calls that it covers:

    values      sum        note
    5, 7        12
    5, -1       5          known for 1 of 2 calls
    -1, -1      unknown    not known for 2 of 2 calls
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.run.analysis import addable
from commtrace.analyze.run.frame import Frames
from commtrace.schema import FAKE
from commtrace.tracefile import EVERY, WRITE_ERRORS
from commtrace.units import counted, known_note, text_of_value

NOT_KNOWN = -1
"""Value of an unknown sum in a column of integers."""


@dataclass(frozen=True, slots=True)
class PartialSum:
    """Sum over calls whose values may be unknown.

    Attributes:
        total: Sum of the known values; nan if there are calls, but none with a known value.
        num_known: Number of calls with a known value.
        num_calls: Number of calls.
    """

    total: float
    num_known: int
    num_calls: int

    def __add__(self, other: PartialSum) -> PartialSum:
        """Return the sum over the calls of both."""
        known = [each.total for each in (self, other) if each.num_known]
        num_calls = self.num_calls + other.num_calls
        total = sum(known) if known or not num_calls else math.nan
        return PartialSum(float(total), self.num_known + other.num_known, num_calls)

    @property
    def is_unknown(self) -> bool:
        """True if there are calls, but none with a known value."""
        return math.isnan(self.total)

    @property
    def note(self) -> str:
        """Number of calls that the sum covers, in words; empty if it covers all."""
        return known_note(self.num_known, self.num_calls)

    def text(self, unit: str) -> str:
        """Format the sum with its note: `1.2 ms, known for 40 of 64 calls`."""
        if self.is_unknown:
            return self.note
        return ", ".join(filter(None, (text_of_value(self.total, unit), self.note)))


def partial_sum(values: pd.Series) -> PartialSum:
    """Return the sum of the values of calls; negative values are unknown."""
    known = values[values >= 0]
    total = float(addable(known).sum()) if len(known) or not len(values) else math.nan
    return PartialSum(total, len(known), len(values))


def known_sums(values: pd.Series, by: Any, index: pd.Index | None = None) -> pd.Series:
    """Return the sum of the known values for each key; -1 where a key has unknown values only.

    Args:
        values: Values of calls, unknown if negative.
        by: Keys of the calls, as for `groupby`.
        index: Keys of the result; a key without any call has the sum 0.
    """
    is_known = values >= 0
    sums = addable(values.where(is_known, 0)).groupby(by, observed=True).sum()
    sums = sums.where(is_known.groupby(by, observed=True).any(), NOT_KNOWN)
    return sums if index is None else sums.reindex(index, fill_value=0)


def num_unknown(values: pd.Series, by: Any, index: pd.Index | None = None) -> pd.Series:
    """Return the number of unknown values for each key; see `known_sums`."""
    counts = (values < 0).astype("int64").groupby(by, observed=True).sum()
    return counts if index is None else counts.reindex(index, fill_value=0)


def is_fake_world(frames: Frames) -> bool:
    """Return whether a single process played a rank of a fake world, without any other rank."""
    return frames.num_ranks == 1 and frames.run.get("process_group") == FAKE


def why_incomplete(frames: Frames) -> Sequence[str]:
    """Return the reasons for which calls of the program may be missing; none for a whole recording.

    A trace without calls proves that the program made none only if it is a whole recording.
    """
    run, ranks = frames.run, frames.ranks
    world_size = 0 if is_fake_world(frames) else int(run.get("world_size", 0))
    num_missing = max(world_size, len(ranks)) - len(ranks)
    num_open = int((~ranks["complete"]).sum())
    num_dropped = int(ranks["num_dropped"].clip(lower=0).sum())
    source = run.get("imported_from")
    reasons = (
        (bool(run.get("part")), "only a part of the run is shown"),
        (not len(ranks), "no rank was recorded"),
        (
            len(ranks) > 0 and num_missing > 0,
            f"{num_missing:,} of {counted(num_missing + len(ranks), 'rank')} left no recording",
        ),
        (
            not source and num_open > 0,
            f"{counted(num_open, 'rank')} did not close the recording",
        ),
        (EVERY in run, "not every step was recorded"),
        (num_dropped > 0, f"{counted(num_dropped, 'call')} were dropped"),
        (WRITE_ERRORS in run, f"not all could be written: {'; '.join(run.get(WRITE_ERRORS, ()))}"),
        (
            bool(source),
            f"{source} may have recorded a part of the run"
            if frames.num_calls
            else f"the files imported from {source} contain no calls",
        ),
    )
    return [text for holds, text in reasons if holds]
