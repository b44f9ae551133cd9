"""All-to-alls in which a rank sends another rank more or less than it expects."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze.consistency import consistency
from tests.commtrace.analyze.rows import call, group, run_of

FOUR = "4,4,4"


def exchange(rank: int, sent: str, received: str, **columns: Any) -> Any:
    known = {"kind": "all_to_all", "native_op": "c10d::alltoall_base_", "dtype": "float32"}
    known |= {"input_splits": sent, "output_splits": received, "at": 5, "until": 9}
    known |= {"source_file": "moe.py", "source_line": 10 + rank, "id": 0, "seq": 0}
    return call(rank=rank, **(known | columns))


def problems(calls: list[Any]) -> list[dict[str, Any]]:
    frames = run_of(calls, num_ranks=3, groups=[group(ranks=range(3))])
    return consistency(frames).to_dict("records")


def test_splits_that_fit_are_no_problem() -> None:
    calls = [exchange(0, "4,8,4", FOUR), exchange(1, FOUR, "8,4,4"), exchange(2, FOUR, FOUR)]
    assert problems(calls) == []


def test_one_pair_that_differs_names_both_ranks_their_sizes_and_lines() -> None:
    (one,) = problems(
        [exchange(0, "4,8,4", FOUR), exchange(1, FOUR, FOUR), exchange(2, FOUR, FOUR)]
    )
    assert (one["problem"], one["is_fault"], one["ranks"]) == ("size", True, "")
    assert one["found"] == "rank 0 sends 8 bytes to rank 1, which expects 4"
    assert one["explanation"] == (
        "In all_to_all 0 of tp (group g), rank 0 at moe.py:10 sends 8 bytes to rank 1, which "
        "expects 4 at moe.py:11."
    )


def test_totals_that_agree_do_not_hide_pairs_that_differ() -> None:
    calls = [exchange(0, "4,8,4", FOUR), exchange(1, FOUR, FOUR), exchange(2, FOUR, "8,4,4")]
    (one,) = problems(calls)
    assert "2 pairs of ranks differ" in one["explanation"]
    assert one["ranks"] == "0"


def test_a_rank_that_all_pairs_have_in_common_is_blamed() -> None:
    calls = [exchange(0, FOUR, FOUR), exchange(1, FOUR, FOUR), exchange(2, "8,8,4", FOUR)]
    (one,) = problems(calls)
    assert (one["ranks"], one["source"]) == ("2", "moe.py:12")


def test_a_rank_without_splits_sends_and_expects_equal_parts() -> None:
    equal = {"input_shapes": "[3]", "output_shapes": "[3]"}
    calls = [exchange(0, "4,8,4", FOUR), exchange(1, "", "", **equal), exchange(2, FOUR, FOUR)]
    (one,) = problems(calls)
    assert one["found"] == "rank 0 sends 8 bytes to rank 1, which expects 4"


@pytest.mark.parametrize(
    "unknown",
    [
        {"native_op": ""},  # an import: equal, or not known
        {"input_splits": "4,4", "output_splits": "4,4"},  # of no group of three
        {"input_splits": f"4,4,{1 << 60}", "output_splits": f"4,4,{1 << 60}"},
    ],
)
def test_unknown_splits_agree_with_everything(unknown: dict[str, Any]) -> None:
    calls = [exchange(0, "4,8,4", FOUR), exchange(1, "", ""), exchange(2, FOUR, FOUR)]
    calls[1] = calls[1]._replace(**unknown)
    assert problems(calls) == []
