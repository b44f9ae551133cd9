"""Covered time against a set of instants."""

from __future__ import annotations

import random

import numpy as np
import pytest

from commtrace.analyze.measures.covered import NOTHING, Covered


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
