"""Differences and sequences of intervals, compared with a walk over every instant."""

from __future__ import annotations

import random

import pandas as pd
import pytest

from commtrace.analyze.measures.intervals import merged, one_at_a_time, without


def random_intervals(seed: int, num: int, lasts: int = 12) -> pd.DataFrame:
    chance = random.Random(seed)
    starts = [chance.randrange(60) for _ in range(num)]
    return pd.DataFrame(
        {
            "row": range(num),
            "rank": [chance.randrange(3) for _ in range(num)],
            "start": starts,
            "end": [start + chance.randrange(1, lasts) for start in starts],
        }
    )


def instants(intervals: pd.DataFrame) -> set[tuple[int, int]]:
    return {(row.rank, at) for row in intervals.itertuples() for at in range(row.start, row.end)}


@pytest.mark.parametrize("seed", range(8))
def test_what_others_cover_is_cut_out(seed: int) -> None:
    intervals = random_intervals(seed, num=seed)
    others = merged(random_intervals(100 + seed, num=3 * seed % 11), ["rank"])
    found = without(intervals, others)
    assert instants(found) == instants(intervals) - instants(others)
    for row, pieces in found.groupby("row"):
        (whole,) = intervals[intervals["row"] == row].to_dict("records")
        expected = instants(intervals[intervals["row"] == row]) - instants(others)
        assert instants(pieces) == expected
        assert (pieces["rank"] == whole["rank"]).all()
        assert (pieces["end"] - pieces["start"]).sum() == len(expected)


@pytest.mark.parametrize("seed", range(8))
def test_at_any_time_the_first_interval_counts(seed: int) -> None:
    intervals = random_intervals(seed, num=2 * seed, lasts=20)
    found = one_at_a_time(intervals)
    assert (found["end"] - found["start"]).sum() == len(instants(found))
    assert instants(found) == instants(intervals)
    for row in found.itertuples():
        for at in range(row.start, row.end):
            open_ones = intervals[
                (intervals["rank"] == row.rank)
                & (intervals["start"] <= at)
                & (at < intervals["end"])
            ]
            assert intervals.loc[intervals["row"] == row.row, "start"].item() == (
                open_ones["start"].min()
            )
