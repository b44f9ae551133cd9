"""Splits of an all-to-all that do not fit are reported before anything is sent."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist

import commtrace
from dtensor_core.testing import run_processes

Splits = tuple[list[int], list[int]]
"""Rows to receive from and to send to each rank."""
CASES: list[tuple[Splits, str]] = [
    (([2, 2], [2, 1]), "input splits [2, 1], 3 in all, and 4 rows"),
    (([2, 3], [2, 2]), "output splits [2, 3], 5 in all, and 4 rows"),
    (([4], [4]), "1 input splits in a group of 2 ranks; 1 output splits in a group of 2 ranks"),
]
FITTING: Splits = ([2, 2], [2, 2])


def reported(splits: Sequence[Splits]) -> list[tuple[list[str], list[int], str]]:
    """Warnings of each all-to-all, the number of recorded calls, and the error of the backend."""
    found = []
    for to_receive, to_send in splits:
        error = ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with commtrace.record(detail="op") as recording:
                try:
                    rows = torch.ones(4, 3)
                    dist.all_to_all_single(torch.zeros(4, 3), rows, to_receive, to_send)
                except RuntimeError as raised:
                    error = str(raised)
        ours = [each for each in caught if "do not fit" in str(each.message)]
        places = {each.filename for each in ours}
        assert places <= {__file__}
        found.append(([str(each.message) for each in ours], len(recording.frames().comm), error))
    return found


def test_splits_that_do_not_fit_are_reported_with_their_numbers() -> None:
    given = [splits for splits, _ in CASES]
    for rank, found in enumerate(run_processes(reported, 2, [*given, FITTING])):
        for (texts, num_calls, error), (_, expected) in zip(found, CASES, strict=False):
            assert texts == [
                f"splits of c10d::alltoall_base_ that do not fit, on rank {rank}\n"
                f"  found: {expected}\n"
                "  why: a rank has one split for each rank of the group, which add up to dim 0\n"
                "  try: as many splits as the group has ranks, and a tensor of their sum"
            ]
            assert num_calls == 1
            assert "split" in error.lower()  # the program fails as it does without a recording
        assert found[-1] == ([], 1, "")
