from __future__ import annotations

import random

import pandas as pd
import pytest

from commtrace.analyze.measures.covered_time import CoveredTime


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_a_count_of_every_nanosecond_gives(seed: int) -> None:
    chance = random.Random(seed)
    intervals = [
        (chance.randrange(3), at, at + chance.randrange(15))
        for at in (chance.randrange(100) for _ in range(chance.randrange(40)))
    ]
    asked = [
        (chance.randrange(5), at, at + chance.randrange(40))
        for at in (chance.randrange(-5, 120) for _ in range(60))
    ]
    given = pd.DataFrame(intervals, columns=["key", "start", "end"]).astype("int64")
    spans = pd.DataFrame(asked, columns=["key", "begin", "end"], index=range(7, 67))
    found = CoveredTime(given["key"], given["start"], given["end"]).within(
        spans["key"], spans["begin"], spans["end"]
    )
    expected = [
        sum(
            any(key == each and start <= at < until for each, start, until in intervals)
            for at in range(begin, end)
        )
        for key, begin, end in asked
    ]
    assert found.tolist() == expected
    assert found.index.equals(spans.index)


def test_times_of_decades_stay_exact() -> None:
    start = 1 << 61
    intervals = pd.Series([start, start + 10]), pd.Series([start + 3, start + 20])
    covered = CoveredTime(pd.Series([0, 0]), *intervals)
    spans = pd.Series([start + 1]), pd.Series([start + 11])
    assert covered.within(pd.Series([0]), *spans).tolist() == [2 + 1]
