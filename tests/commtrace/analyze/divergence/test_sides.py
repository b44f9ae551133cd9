"""Ranks of a fault stand on the side of what they called, and all sides are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze.divergence import divergences
from commtrace.schema import DATA_END
from tests.commtrace.analyze.rows import call, group, run_of

ALL_REDUCE, ALL_GATHER, BROADCAST = ("all_reduce", 8), ("all_gather", 9), ("broadcast", 7)


def of_ranks(*last: tuple[str, int]) -> Any:
    """Ranks that all make a call at line 1, and then a call of this kind at this line."""
    calls = [
        call(
            rank=rank, id=number, seq=number, at=1000 * number, kind=kind, thread=7,
            source_file="train.py", source_line=line,
        )
        for rank, made in enumerate(last)
        for number, (kind, line) in enumerate([("all_reduce", 1), made])
    ]  # fmt: skip
    return run_of(calls, num_ranks=len(last), groups=[group("g", range(len(last)))])


def sides(frames: Any) -> list[tuple[str, str]]:
    rows = divergences(frames)
    return sorted(zip(rows["ranks"], rows["others"], strict=True))


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ([ALL_REDUCE, ALL_REDUCE, ALL_GATHER, ALL_GATHER], [("2,3", "0,1")]),
        ([ALL_REDUCE, ALL_GATHER, ALL_REDUCE, ALL_GATHER], [("1,3", "0,2")]),
        ([ALL_REDUCE, ALL_GATHER], [("1", "0")]),
        ([ALL_REDUCE, ALL_GATHER, BROADCAST], [("1", "0"), ("2", "0")]),
        (
            [ALL_REDUCE, ALL_GATHER, ALL_REDUCE, BROADCAST, ALL_REDUCE],
            [("1", "0,2,4"), ("3", "0,2,4")],
        ),
    ],
)
def test_ranks_are_compared_with_those_that_made_another_call(
    last: list[tuple[str, int]], expected: list[tuple[str, str]]
) -> None:
    assert sides(of_ranks(*last)) == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_where_no_rank_is_blamed_an_event_of_either_side_is_named(rank: int) -> None:
    frames = of_ranks(ALL_REDUCE, ALL_GATHER)
    at = int(frames.comm["issue_ns"].min()) + 500
    event = {
        "rank": rank, "kind": DATA_END, "at_ns": at, "duration_ns": -1, "thread": 7,
        "text": "the data loader had no batch after 1", "source_file": "train.py",
        "source_line": 3,
    }  # fmt: skip
    (row,) = divergences(replace(frames, host_events=pd.DataFrame([event]))).to_dict("records")
    assert (row["ranks"], row["others"], row["event_rank"]) == ("1", "0", rank)
    assert f"Meanwhile, rank {rank} ran out of data" in row["explanation"]
