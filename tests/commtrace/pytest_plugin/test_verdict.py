"""Verdicts on synthetic calls: filters, ranks, and the text of a failure."""

from __future__ import annotations

import pytest

from commtrace.event import CommEvent, GroupRow, OpEvent, RankRow
from commtrace.pytest_plugin.expectation import claims_of
from commtrace.pytest_plugin.mismatch import check, text_of_observed
from commtrace.pytest_plugin.observed import OWN, Observed, observed_in
from commtrace.tracefile import Trace, trace_of_rows

GROUPS = [
    GroupRow("0", "default_pg", "0,1", 2, "", "gloo"),
    GroupRow("7", "mesh_tp", "0,1", 2, "tp", "gloo"),
    GroupRow("8", "undefined", "0", 1, "", "gloo"),
    GroupRow("9", "pairs", "0,1", 2, "", "gloo"),
]


def call(rank: int = 0, number: int = 0, **columns) -> CommEvent:
    known = {
        "kind": "all_reduce",
        "group": "0",
        "payload_bytes": 100,
        "wire_bytes": 100,
        "phase": "forward",
        "module": "layers.0.wo",
        "op": "aten.mm.default",
        "source_file": "model.py",
        "source_line": 7,
        "source_function": "forward",
        "dtype": "float32",
    }
    return CommEvent(rank=rank, id=number, **{**known, **columns})


def trace(calls, *, num_ranks: int = 1, modules=()) -> Trace:
    rows = {
        "comm": [each._replace(id=number) for number, each in enumerate(calls)],
        "groups": GROUPS,
        "ranks": [RankRow(rank=rank, num_dropped=0, complete=True) for rank in range(num_ranks)],
        "ops": [
            OpEvent(rank=rank, id=number, op="aten.mm.default", module=module)
            for rank in range(num_ranks)
            for number, module in enumerate(modules)
        ],
    }
    return trace_of_rows({"world_size": 2}, rows)


def found(*calls, **options) -> Observed:
    return observed_in({OWN: trace(calls, **options)})


def verdict(of: Observed, **arguments) -> str:
    failure = check(claims_of(arguments, caller=""), of, caller="what was said")
    return str(failure) if failure else ""


VARIED = found(
    call(),
    call(module="layers.1", phase="backward", group="7", dtype="bfloat16"),
    call(module="", phase="other", op="", group="8", kind="barrier", payload_bytes=0),
    call(module="head", region="loss", step=2, group="9", source_file="/home/me/lib/loss.py"),
    modules=("layers.0.wo", "layers.1", "head"),
)


@pytest.mark.parametrize(
    ("filters", "number"),
    [
        ({}, 4),
        ({"module": "layers.*"}, 2),
        ({"module": "layers.0"}, 1),
        ({"module": "layers"}, 2),
        ({"module": ""}, 1),
        ({"module": ["head", "layers.1"]}, 2),
        ({"phase": "backward"}, 1),
        ({"phase": ["backward", "other"]}, 2),
        ({"group": "tp"}, 1),
        ({"group": "world"}, 1),
        ({"axis": "tp"}, 1),
        ({"axis": "world"}, 0),
        ({"axis": ["tp", ""]}, 4),
        ({"group": "default_pg"}, 1),
        ({"group": "pairs"}, 1),
        ({"group": "1 of 2"}, 1),
        ({"op": "aten.mm.default"}, 3),
        ({"op": "mm"}, 3),
        ({"op": "aten.*"}, 3),
        ({"op": ""}, 1),
        ({"region": "loss"}, 1),
        ({"step": 2}, 1),
        ({"dtype": "bf*"}, 1),
        ({"dtype": "*float*"}, 4),
        ({"source": "model.py"}, 3),
        ({"source": "lib/loss.py"}, 1),
        ({"module": "layers.*", "phase": "forward"}, 1),
    ],
)
def test_a_filter_says_which_calls_are_meant(filters, number: int) -> None:
    assert verdict(VARIED, total=number, **filters) == ""
    assert f"total {number}, expected {number + 1}" in verdict(VARIED, total=number + 1, **filters)


@pytest.mark.parametrize(
    ("quantity", "value"),
    [("all_reduce", 3), ("barrier", 1), ("payload", 300), ("wire", 400), ("largest", 100)],
)
def test_quantities(quantity: str, value: int) -> None:
    assert verdict(VARIED, **{quantity: value}) == ""
    assert verdict(VARIED, **{quantity: value + 1})


def test_every_rank_has_to_keep_to_it() -> None:
    both = found(call(0), call(1), call(1), num_ranks=2)
    text = verdict(both, all_reduce=1)
    assert "found: all_reduce 2, expected 1" in text
    assert "all_reduce 1  all_reduce 2  1" in text
    assert verdict(both, all_reduce="1..2") == ""
    assert verdict(both, all_reduce=2, ranks=1) == ""
    assert verdict(both, all_reduce=1, ranks=[0]) == ""
    assert verdict(both, all_reduce=3, ranks="sum") == ""
    assert "all, summed" in verdict(both, all_reduce=4, ranks="sum")


def test_a_rank_without_calls_counts_and_one_that_there_is_not_does_nothing() -> None:
    first = found(call(0), num_ranks=2)
    assert "all_reduce 0, expected 1" in verdict(first, all_reduce=1)
    assert "all_reduce 0, expected 1" in verdict(first, all_reduce=1, ranks=5)


def test_the_tests_own_process_is_no_rank_where_others_were() -> None:
    ranks = trace([call(0), call(1)], num_ranks=2)
    assert observed_in({OWN: trace([]), "ranks": ranks}).ranks == [0, 1]
    assert observed_in({OWN: trace([])}).ranks == [0]
    assert verdict(observed_in({OWN: trace([]), "a": ranks, "b": ranks}), all_reduce=2) == ""


def test_a_module_that_there_is_not_fails_also_where_nothing_is_expected() -> None:
    text = verdict(VARIED, total=0, module="layrs.*")
    assert "found: no module 'layrs.*', for which total 0 in module layrs.* was expected" in text
    assert "why: a bound on a module that does not exist always holds" in text
    assert "try: one of head, layers.0.wo, layers.1" in text


def test_modules_that_are_not_known_are_not_missed() -> None:
    assert verdict(found(call()), total=0, module="layrs.*") == ""


def test_the_full_text() -> None:
    barrier = {"module": "", "phase": "other", "kind": "barrier", "op": "", "payload_bytes": 0}
    both = found(call(0), call(1), call(1, wire_bytes=0, **barrier), num_ranks=2)
    assert verdict(both, all_reduce=2, max_payload="50 B") == (
        "what was said does not hold\n"
        "  found: all_reduce 1, expected 2; payload 100 B, expected <= 50 B\n"
        "  try: see the source lines of the calls below; --comms-report=DIR saves the trace\n"
        "\n"
        "  expected         found          on ranks\n"
        "  all_reduce 2     all_reduce 1   all 2\n"
        "  payload <= 50 B  payload 100 B  all 2\n"
        "\n"
        "recorded, per rank, of 2 ranks:\n"
        "  calls  kind        payload   wire  phase    module       operator         group  "
        "line                ranks\n"
        "      1  all_reduce    100 B  100 B  forward  layers.0.wo  aten.mm.default  world  "
        "model.py:7 forward\n"
        "      1  barrier         0 B    0 B  other                                  world  "
        "model.py:7 forward  1"
    )


def test_where_nothing_was_recorded_no_lines_are_promised() -> None:
    text = verdict(found(), total=1)
    assert "try: nothing communicated: check that the test reaches" in text
    assert "source lines" not in text
    assert "recorded: no communication" in text


def test_long_texts_are_truncated_with_a_note() -> None:
    many = found(*(call(source_line=line) for line in range(30)))
    text = text_of_observed(many, 5)
    assert text.count("\n") == 7
    assert text.endswith("... 25 more lines: --comms-rows=30")
