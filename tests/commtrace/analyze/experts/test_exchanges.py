"""Tables `all_to_all_splits` and `expert_load` of small runs, with numbers computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze.experts.all_to_all_splits import all_to_all_splits
from commtrace.analyze.experts.exchanges import equal_parts, ranks_of_experts, splits_of
from commtrace.analyze.experts.expert_load import expert_load
from tests.commtrace.analyze.rows import call, group, run_of


def exchange(rank: int, number: int, sent: str, received: str, **columns: Any) -> Any:
    """An all-to-all of rows of 8 bytes."""
    known = {"kind": "all_to_all", "dtype": "float32", "input_shapes": "[9,2]", "step": 0}
    known |= {"input_splits": sent, "output_splits": received, "id": number, "seq": number}
    return call(rank=rank, **(known | columns))


def moved(calls: list[Any]) -> list[tuple[Any, ...]]:
    """Direction, source, target, bytes, rows and calls."""
    table = all_to_all_splits(run_of(calls))
    columns = ["direction", "source", "target", "sent_bytes", "num_rows", "num_calls"]
    return list(table[columns].itertuples(index=False, name=None))


def loads(calls: list[Any], **more: Any) -> list[tuple[Any, ...]]:
    """Rank, expert, bytes, rows and ratio."""
    table = expert_load(run_of(calls, **more))
    columns = ["rank", "expert", "load_bytes", "num_rows", "ratio"]
    return list(table[columns].itertuples(index=False, name=None))


DISPATCH = [exchange(0, 0, "8,16", "8,0"), exchange(1, 0, "0,24", "16,24")]
COMBINE = [exchange(0, 1, "8,0", "8,16"), exchange(1, 1, "16,24", "0,24")]


def test_a_call_that_returns_what_was_received_makes_a_dispatch_and_a_combine() -> None:
    assert moved(DISPATCH + COMBINE) == [
        ("combine", 0, 0, 8, 1, 1),
        ("combine", 0, 1, 0, 0, 1),
        ("combine", 1, 0, 16, 2, 1),
        ("combine", 1, 1, 24, 3, 1),
        ("dispatch", 0, 0, 8, 1, 1),
        ("dispatch", 0, 1, 16, 2, 1),
        ("dispatch", 1, 0, 0, 0, 1),
        ("dispatch", 1, 1, 24, 3, 1),
    ]


def test_results_may_be_wider_than_the_rows_that_were_dispatched() -> None:
    wide = [exchange(0, 1, "16,0", "16,32"), exchange(1, 1, "32,48", "0,48")]
    wide = [each._replace(input_shapes="[9,4]") for each in wide]
    assert {row[0] for row in moved(DISPATCH + wide)} == {"dispatch", "combine"}


@pytest.mark.parametrize(
    "other",
    [{"step": 1}, {"dtype": "float64"}, {"output_splits": "8,8"}],
    ids=["another step", "another type", "other rows"],
)
def test_the_direction_of_a_call_without_a_partner_is_unknown(other: dict[str, Any]) -> None:
    rows = moved([*DISPATCH, *(each._replace(**other) for each in COMBINE)])
    assert {row[0] for row in rows} == {""}


def test_exchanges_that_overlap_are_paired_by_their_rows() -> None:
    other = [exchange(0, 1, "8,24", "0,0"), exchange(1, 1, "0,0", "24,0")]
    calls = [*DISPATCH, *other]
    for each in DISPATCH + other:
        back = {"input_splits": each.output_splits, "output_splits": each.input_splits}
        calls.append(each._replace(id=each.id + 2, seq=each.seq + 2, **back))
    of_zero = [row for row in moved(calls) if row[1:3] == (0, 1)]
    assert of_zero == [("combine", 0, 1, 0, 0, 2), ("dispatch", 0, 1, 40, 5, 2)]


def test_the_load_is_that_of_the_dispatch() -> None:
    assert loads(DISPATCH + COMBINE) == [
        (0, -1, 8, 1, pytest.approx(8 / 24)),
        (1, -1, 40, 5, pytest.approx(40 / 24)),
    ]


def test_the_load_of_each_expert_is_what_the_program_states() -> None:
    stated = [
        each._replace(expert_rows=rows)
        for each, rows in zip(DISPATCH, ("1,0,0,2", "0,0,3,0"), strict=True)
    ]
    assert loads(stated) == [
        (0, 0, 8, 1, pytest.approx(8 / 12)),
        (0, 1, 0, 0, 0),
        (1, 2, 24, 3, 2),
        (1, 3, 16, 2, pytest.approx(16 / 12)),
    ]


@pytest.mark.parametrize("wrong", ["", "0,0,1,1", "1,0,0,2,5", "9,9,9,9"])
def test_rows_of_experts_that_do_not_agree_with_the_splits_are_not_used(wrong: str) -> None:
    stated = [
        each._replace(expert_rows=rows)
        for each, rows in zip(DISPATCH, (wrong, "0,0,3,0"), strict=True)
    ]
    assert [row[1] for row in loads(stated)] == [-1, -1]


def test_rows_of_unknown_size_are_unknown_and_not_zero() -> None:
    calls = [each._replace(input_shapes="") for each in DISPATCH]
    assert [row[3:5] for row in moved(calls)] == [(8, -1), (16, -1), (0, 0), (24, -1)]
    assert [row[2:4] for row in loads(calls)] == [(8, -1), (40, -1)]


def test_what_is_no_exchange_of_experts_is_left_out() -> None:
    splits = [
        exchange(0, 0, "8,16,8", "8,0"),  # of another number of ranks
        exchange(0, 1, f"8,{1 << 60}", "8,0"),
        exchange(0, 2, "", ""),
        exchange(0, 3, "8,16", "8,0", group="unknown"),
    ]
    assert moved(splits) == []
    layout = [each._replace(source_spec="f32[9,2] tp:S(0)") for each in DISPATCH]
    assert len(moved(layout)) == 4
    assert loads(layout) == []
    assert loads([each._replace(dtype="int64") for each in DISPATCH]) == []


def test_a_rank_that_states_what_it_receives_only_sends_equal_parts() -> None:
    calls = [exchange(0, 0, "", "8,0", payload_bytes=24), exchange(0, 1, "", "8,0")]
    assert moved(calls) == [("", 0, 0, 12, 1, 1), ("", 0, 1, 12, 1, 1)]


def test_experts_are_divided_like_chunks() -> None:
    assert ranks_of_experts(5, 2).tolist() == [0, 0, 0, 1, 1]
    assert ranks_of_experts(4, 4).tolist() == [0, 1, 2, 3]
    calls = [exchange(0, 0, "24,16,8", "", expert_rows="3,0,2,0,1"), exchange(1, 0, "8,8,8", "")]
    calls[1] = calls[1]._replace(expert_rows="0,1,0,1,1")
    found = loads(calls, num_ranks=3, groups=[group(ranks=range(3))])
    assert [row[:4] for row in found] == [
        (0, 0, 24, 3), (0, 1, 8, 1), (1, 2, 16, 2), (1, 3, 8, 1), (2, 4, 16, 2),
    ]  # fmt: skip


def test_splits_are_read_if_they_can_be_those_of_the_group() -> None:
    assert splits_of("1,2", 3) is None
    assert splits_of("-1,2", 2) is None
    assert equal_parts("[6,2]", "float32", 3).tolist() == [16, 16, 16]  # type: ignore[union-attr]
    assert equal_parts("[7,2]", "float32", 3) is None
    assert equal_parts("[]", "float32", 3) is None
    assert equal_parts("[6,2];[6,2]", "float32", 3) is None
