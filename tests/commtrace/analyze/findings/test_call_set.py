"""Sets of calls hold the calls of an index, however they are stored."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze.findings.call_set import CallSet


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("first", [0, 7, 10**12])
def test_it_has_the_calls_that_it_was_made_of(step: int, first: int) -> None:
    rows = pd.Index(first + step * np.random.default_rng(step).permutation(500))
    half, other = CallSet.of(rows[:200]), CallSet.of(rows[200:])
    calls = half.joined(other)
    assert len(calls) == 500
    assert all(int(row) in calls for row in rows)
    assert first + 500 * step not in calls
    assert first - 1 not in calls
    if step > 1:
        assert first + 1 not in calls
    for table in (rows.sort_values(), rows[::-1], pd.RangeIndex(first, first + 500 * step, step)):
        assert calls.places_in(table).tolist() == [*range(500)]
    few = rows[[3, 250]].append(pd.Index([first - 5]))
    assert calls.places_in(few).tolist() == [0, 1]
    assert half.places_in(few).tolist() == [0]


def test_without_calls_it_is_empty() -> None:
    none = CallSet.of(pd.Index([], dtype="int64"))
    assert len(none) == 0
    assert 0 not in none
    assert none.places_in(pd.RangeIndex(3)).tolist() == []


def test_dense_calls_take_a_bit_each() -> None:
    calls = CallSet.of(pd.RangeIndex(5, 800_005))
    (piece,) = calls.pieces
    assert piece.bits is not None
    assert piece.bits.nbytes == 100_000
    assert piece.labels is None


def test_a_row_that_is_listed_twice_counts_twice_and_is_one_place() -> None:
    calls = CallSet.of(pd.Index([4, 4, 2]))
    assert len(calls) == 3
    assert calls.places_in(pd.RangeIndex(6)).tolist() == [2, 4]
