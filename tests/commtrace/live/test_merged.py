"""Ranks of a run that is over, by its file."""

from __future__ import annotations

import pytest

from commtrace.live.merged import dead_ranks
from tests.commtrace.analyze.rows import rank_row, trace_of


@pytest.mark.parametrize(
    ("codes", "dead"),
    [
        ({0: -1, 1: -9, 2: -1}, {1}),  # the launcher ended the others
        ({0: -1, 1: -1, 2: 0}, {0, 1}),  # nobody saw how they ended
        ({0: -1, 1: 1, 2: -9}, {1}),  # it closed its recording, so that it is not torn
        ({0: -1, 1: -1, 2: 1}, {2}),  # it failed, and the launcher ended the others
    ],
)
def test_ranks_that_the_launcher_ended_did_not_die(codes: dict[int, int], dead: set[int]) -> None:
    ranks = [rank_row(rank, complete=rank == 2, exit_code=code) for rank, code in codes.items()]
    trace = trace_of([], ranks=ranks, run={"torn_ranks": [0, 1]})
    assert set(dead_ranks(trace)) == dead
