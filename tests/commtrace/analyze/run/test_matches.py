"""Numbers of matches, and arrays with an entry for each, to which all parts add."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import (
    Arrays,
    across_ranks,
    codes_of_texts,
    entries,
    first_of_groups,
    matches,
    numbers,
    of_match,
    partners,
    put_alike,
    sections,
)
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.split_run import SplitRun

GROUPS = ("tp", "dp")
CALLS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(GROUPS),
        st.sampled_from([0, 1, 2, 3, 10**6, 1 << 61, -1]),
    ),
    max_size=20,
)


def run_with(calls: list[tuple[int, str, int]]) -> Frames:
    return run_of(
        [
            call(rank=rank, id=id, group=group, seq=number, kind="all_reduce")
            for id, (rank, group, number) in enumerate(calls)
        ]
    )


@settings(max_examples=40)
@given(CALLS)
def test_calls_have_the_same_match_if_their_group_and_number_are_the_same(
    calls: list[tuple[int, str, int]],
) -> None:
    run = run_with(calls)
    for each in (run, SplitRun(run)):
        match = matches(each)
        names = zip(run.comm["group"], run.comm["seq"], strict=True)
        keys = pd.Series([*names], index=run.comm.index, dtype=object)
        is_known = run.comm["seq"] >= 0
        assert (match[~is_known] == -1).all()
        pairs = set(zip(keys[is_known], match[is_known], strict=True))
        assert len(pairs) == keys[is_known].nunique() == match[is_known].nunique()
        assert match[is_known].between(0, sections(each).num - 1).all()


def test_numbers_without_calls_take_no_space() -> None:
    run = run_with([(0, "tp", 0), (0, "dp", 5), (1, "tp", 1 << 61)])
    assert sections(run).num == 3
    assert matches(run).tolist() == [1, 0, 2]


def test_the_first_of_each_group_is_found_by_its_match() -> None:
    run = run_with([(0, "tp", 7), (0, "tp", 8), (0, "dp", 4), (1, "tp", 9), (1, "dp", 1 << 61)])
    assert first_of_groups(run, np.empty(0, dtype="int64")) == {}
    chosen = np.unique(matches(run)[run.comm["seq"].isin([8, 9, 1 << 61])])
    assert first_of_groups(run, chosen) == {"tp": 8, "dp": 1 << 61}


def test_transfers_match_in_their_order_and_by_their_tags() -> None:
    ends: list[dict[str, Any]] = [
        {"rank": 0, "kind": "send", "peer": 1, "tag": 3},
        {"rank": 0, "kind": "send", "peer": 1, "tag": 4},
        {"rank": 0, "kind": "send", "peer": 1, "tag": 3},
        {"rank": 1, "kind": "recv", "peer": 0, "tag": 4},
        {"rank": 1, "kind": "recv", "peer": 0, "tag": 3},
        {"rank": 1, "kind": "recv", "peer": -1, "tag": 3},
    ]
    run = run_of([call(id=id, group="pp", **each) for id, each in enumerate(ends)])
    for each in (run, SplitRun(run)):
        assert partners(each).tolist() == [4, 3, -1, 1, 0, -1]
        match = matches(each)
        assert match[0] == match[4]
        assert match[1] == match[3]
        assert match[5] == -1


@across_ranks(num=(0, "int64"), latest=(-1, "int64"), _on_the_way=(0, "int64"))
def made(part: Frames, into: Arrays) -> None:
    """Number of calls, and the highest rank."""
    at = matches(part)[numbers(part) >= 0]
    np.add.at(into["num"], at, 1)
    np.maximum.at(into["latest"], at, part.comm["rank"][at.index])


def test_all_parts_add_to_the_arrays_and_calls_take_their_entries() -> None:
    run = run_with([(0, "tp", 0), (0, "tp", -1), (1, "tp", 0), (2, "tp", 1)])
    for each in (run, SplitRun(run)):
        assert of_match(each, made(each)["num"], -5).tolist() == [2, -5, 2, 1]
        found = entries(made(each), matches(each)[[0, 2, 3]])
        assert found["latest"].tolist() == [1, 1, 2]
        assert found.index.tolist() == [0, 2, 3]


def test_values_that_differ_from_those_of_their_match_are_marked() -> None:
    kept = np.zeros(3, "int64")
    at = np.array([0, 0, 1])
    assert put_alike(kept, at, np.array([5, 5, 6]), 0).tolist() == [False, False, False]
    assert put_alike(kept, at[:1], np.array([7]), 0).tolist() == [True]
    assert put_alike(np.zeros(2, "int64"), at, np.array([5, 6, 1]), 0).any()


def test_texts_have_the_same_code_in_all_parts() -> None:
    one, other = (
        codes_of_texts(pd.Series(texts, dtype="category")) for texts in (["a", "b"], ["b", "c"])
    )
    assert one[1] == other[0]
    assert len({*one, *other}) == 3
    assert (one > 0).all()


def test_the_decorated_function_keeps_its_description() -> None:
    assert made.__doc__ == "Number of calls, and the highest rank."
    with pytest.raises(KeyError):
        made(run_with([(0, "tp", 0)]))["neither"]
