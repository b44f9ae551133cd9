"""Sums over calls are known, unknown, or known for a part; unknown is never 0."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze.run.known import known_sums, num_unknown, partial_sum, why_incomplete
from tests.commtrace.analyze.rows import call, rank_row, run_of


@pytest.mark.parametrize(
    ("values", "total", "text"),
    [
        ([5, 7], 12, "12 ns"),
        ([5, -1], 5, "5 ns, known for 1 of 2 calls"),
        ([-1, -1], math.nan, "not known for 2 of 2 calls"),
        ([-1], math.nan, "not known for 1 of 1 call"),
        ([0, 0], 0, "0 ns"),
        ([], 0, "0 ns"),
    ],
)
def test_a_sum_says_what_part_of_it_is_known(values: list[int], total: float, text: str) -> None:
    found = partial_sum(pd.Series(values, dtype="int64"))
    assert found.total == pytest.approx(total, nan_ok=True)
    assert found.text("ns") == text
    assert found.is_unknown == math.isnan(total)


def test_sums_by_key_are_unknown_where_no_value_is_known_and_0_without_calls() -> None:
    values, keys = pd.Series([4, -1, -1, 3]), pd.Series([0, 0, 1, 2])
    index = pd.Index([0, 1, 2, 3])
    assert known_sums(values, keys, index).tolist() == [4, -1, 3, 0]
    assert known_sums(values, keys).tolist() == [4, -1, 3]
    assert num_unknown(values, keys, index).tolist() == [1, 1, 0, 0]


def test_sums_beyond_64_bits_do_not_become_unknown() -> None:
    values = pd.Series([1 << 62] * 4)
    assert known_sums(values, pd.Series([0] * 4)).tolist() == [float(1 << 64)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"run": {"imported_from": "torch.profiler"}}, "torch.profiler may have recorded a part"),
        ({"run": {"part": "step 3"}}, "only a part of the run is shown"),
        ({"num_ranks": 0, "groups": []}, "no rank was recorded"),
        ({"run": {"world_size": 8}}, "6 of 8 ranks left no recording"),
        ({"ranks": [rank_row(0), rank_row(1, complete=False)]}, "1 rank did not close"),
        ({"ranks": [rank_row(0), rank_row(1, num_dropped=3)]}, "3 calls were dropped"),
    ],
)
def test_only_a_whole_recording_has_all_calls(more: dict[str, Any], reason: str) -> None:
    assert why_incomplete(run_of()) == []
    (found,) = why_incomplete(run_of([call()], **more))
    assert found.startswith(reason)
