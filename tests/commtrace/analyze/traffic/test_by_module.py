from __future__ import annotations

import pytest

from commtrace.analyze.traffic.by_module import ancestors, by_module, natural_key
from tests.commtrace.analyze.rows import call, op, run_of


@pytest.fixture
def table():
    calls = [
        call(module="", blocked_ns=1, payload_bytes=10),
        call(module="layers.10.attention", module_class="Attention", blocked_ns=2),
        call(module="layers.2", module_class="Block", blocked_ns=4, payload_bytes=20),
        call(module="layers.2.attention.wo", module_class="Linear", blocked_ns=8),
        call(module="layers.2.attention.wo", module_class="Linear", blocked_ns=16),
        call(module="output", blocked_ns=32),
    ]
    ops = [op(at=0, module="layers.2.attention", module_class="Attention")]
    return by_module(run_of(calls, ops=ops, num_ranks=1))


def test_a_module_counts_what_is_inside_it_and_what_is_its_own(table) -> None:
    columns = ["module", "num_calls", "own_num_calls", "blocked_ns", "own_blocked_ns"]
    assert table[columns].to_numpy().tolist() == [
        ["", 6, 1, 63, 1],
        ["layers", 4, 0, 30, 0],
        ["layers.2", 3, 1, 28, 4],
        ["layers.2.attention", 2, 0, 24, 0],
        ["layers.2.attention.wo", 2, 2, 24, 24],
        ["layers.10", 1, 0, 2, 0],
        ["layers.10.attention", 1, 1, 2, 2],
        ["output", 1, 1, 32, 32],
    ]


def test_the_tree_is_in_the_depth_and_the_name(table) -> None:
    assert table["depth"].tolist() == [0, 1, 2, 3, 4, 2, 3, 1]
    assert table["name"].tolist() == [
        "",
        "layers",
        "2",
        "attention",
        "wo",
        "10",
        "attention",
        "output",
    ]


def test_a_class_is_known_from_a_call_or_an_operator(table) -> None:
    assert dict(zip(table["module"], table["module_class"], strict=True)) == {
        "": "",
        "layers": "",
        "layers.2": "Block",
        "layers.2.attention": "Attention",
        "layers.2.attention.wo": "Linear",
        "layers.10": "",
        "layers.10.attention": "Attention",
        "output": "",
    }


def test_payload_is_inclusive_too(table) -> None:
    assert table.set_index("module")["payload_bytes"]["layers.2"] == 20
    assert table.set_index("module")["payload_bytes"][""] == 30


def test_numbers_in_names_sort_by_value_and_a_module_before_what_is_inside() -> None:
    paths = ["b10", "b9", "b9.c", "", "a.10", "a.9", "9", "a"]
    assert sorted(paths, key=natural_key) == ["", "9", "a", "a.9", "a.10", "b9", "b9.c", "b10"]


def test_a_path_begins_with_the_entire_run() -> None:
    assert ancestors("a.b.c") == ["", "a", "a.b", "a.b.c"]
    assert ancestors("") == [""]


def test_a_run_without_communication_has_no_tree() -> None:
    assert by_module(run_of()).empty


def test_own_time_is_unknown_for_own_calls_that_were_not_timed_and_0_without_own_calls() -> None:
    calls = [call(module="a"), call(id=1, module="b.c", blocked_ns=4)]
    found = by_module(run_of(calls, num_ranks=1)).set_index("module")["own_blocked_ns"]
    assert found.isna().to_dict() == {"": False, "a": True, "b": False, "b.c": False}
    assert found["b"] == 0
