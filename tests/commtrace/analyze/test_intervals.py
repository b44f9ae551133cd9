"""Differences and sequences of intervals, compared with a walk over every instant."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze.intervals import NOTHING, Covered, merged, one_at_a_time, without


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


def covered(intervals: list[tuple[int, int]]) -> Covered:
    start, end = np.array(intervals, dtype="int64").reshape(-1, 2).T
    return Covered.by(start, end)


@pytest.mark.parametrize("seed", range(20))
def test_covered_time_is_that_of_the_instants_in_any_interval(seed: int) -> None:
    chance = random.Random(seed)
    made = []
    for _ in range(2):
        starts = [chance.randrange(80) for _ in range(chance.randrange(12))]
        made.append([(start, start + chance.randrange(12)) for start in starts])
    instants = [{at for start, end in each for at in range(start, end)} for each in made]
    first, second = (covered(each) for each in made)
    windows = [sorted((chance.randrange(-5, 100), chance.randrange(-5, 100))) for _ in range(30)]
    edges = np.array(windows).T
    for found, expected in (
        (first, instants[0]),
        (first.joined(second), instants[0] | instants[1]),
        (NOTHING.joined(first), instants[0]),
    ):
        counts = [sum(begin <= at < end for at in expected) for begin, end in windows]
        assert found.within(*edges).tolist() == counts
        assert (found.end[:-1] < found.start[1:]).all()


def test_an_interval_of_no_length_outside_of_the_others_is_a_part() -> None:
    found = covered([(0, 10), (5, 5), (20, 20), (30, 40)])
    assert found.start.tolist() == [0, 20, 30]
    assert found.end.tolist() == [10, 20, 40]
    assert found.within(np.array([0]), np.array([100])).tolist() == [20]


def test_long_times_do_not_overflow() -> None:
    most = (1 << 62) + (1 << 58)
    found = covered([(0, most), (most - 5, most)])
    assert found.within(np.array([0]), np.array([most])).tolist() == [most]
