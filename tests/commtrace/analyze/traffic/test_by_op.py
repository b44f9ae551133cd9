from __future__ import annotations

from commtrace.analyze.traffic.by_op import by_op
from tests.commtrace.analyze.rows import call, run_of


def test_an_operator_has_a_row_per_kind_and_a_call_without_one_has_none() -> None:
    frames = run_of(
        [
            call(op="aten.mm.default", kind="all_reduce", blocked_ns=1),
            call(op="aten.mm.default", kind="all_gather", blocked_ns=3),
            call(op="", kind="barrier", blocked_ns=2),
            call(op="aten.mm.default", kind="all_gather", blocked_ns=3),
        ],
        num_ranks=1,
    )
    table = by_op(frames)
    assert list(zip(table["op"], table["kind"], table["num_calls"], strict=True)) == [
        ("aten.mm.default", "all_gather", 2),
        ("", "barrier", 1),
        ("aten.mm.default", "all_reduce", 1),
    ]
    assert table["blocked_ns"].tolist() == [6, 2, 1]
