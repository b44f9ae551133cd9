"""Growth from a baseline, by module, kind and line; expected numbers derived by hand."""

from __future__ import annotations

import math
from typing import Any

from commtrace.analyze.comparisons.growth import Grown, by_kind, by_line, by_module, totals
from tests.commtrace.analyze.rows import call, run_of, step

LINE = {"source_file": "train.py", "source_function": "f"}


def of(rows: list[Grown], measure: str = "calls") -> dict[str, tuple[float, ...]]:
    return {row.name: row.values[measure] for row in rows}


def test_numbers_are_means_over_each_run_s_own_ranks() -> None:
    two = run_of([call(rank=rank, wire_bytes=8) for rank in range(2)], num_ranks=2)
    four = run_of([call(rank=rank, wire_bytes=12) for rank in range(4)], num_ranks=4)
    (row,) = totals([two, four])
    assert (row.scope, row.values["calls"], row.values["wire_bytes"]) == ("run", (1, 1), (8, 12))
    assert row.growth("wire_bytes") == 4


def test_what_happens_in_steps_is_counted_per_step_and_distinguished() -> None:
    short = run_of([call(step=0), call(id=1, step=-1)], num_ranks=1, steps=[step(0, 0, 0, 9)])
    long = run_of(
        [call(id=n, step=n) for n in range(3)],
        num_ranks=1,
        steps=[step(0, n, 0, 9) for n in range(3)],
    )
    found = {row.scope: row.values["calls"] for row in totals([short, long])}
    assert found == {"step": (1, 1), "run": (1, 0)}


def test_a_place_that_a_run_lacks_is_0_and_a_size_that_it_does_not_know_is_nan() -> None:
    base = run_of([call(kind="all_gather", wire_bytes=8, blocked_ns=-1)], num_ranks=1)
    other = run_of([call(kind="send", wire_bytes=2, blocked_ns=3)], num_ranks=1)
    rows = {row.name: row for row in by_kind([base, other])}
    assert rows["send"].values["wire_bytes"] == (0, 2)
    assert rows["all_gather"].values["wire_bytes"] == (8, 0)
    assert math.isnan(rows["all_gather"].values["blocked_ns"][0])
    assert rows["all_gather"].growth("blocked_ns") == 0
    assert [row.name for row in by_kind([base, other])] == ["send", "all_gather"]


def test_a_module_has_what_is_inside_of_it_and_chains_are_reported_once() -> None:
    base = run_of([call(module="layers.0.wq"), call(id=1, module="layers.1")], num_ranks=1)
    other = run_of([call(id=n, module="layers.1") for n in range(3)], num_ranks=1)
    assert of(by_module([base, other])) == {
        "layers": (2, 3),
        "layers.1": (1, 3),
        "layers.0.wq": (1, 0),  # layers.0 has the same numbers
    }


def test_a_third_run_is_compared_with_the_first() -> None:
    runs = [run_of([call(id=i) for i in range(n)], num_ranks=1) for n in (2, 3, 1)]
    (row,) = by_kind(runs)
    assert row.values["calls"] == (2, 3, 1)
    assert row.growth("calls") == 1  # the first of the largest changes


def test_lines_that_an_edit_has_moved_are_compared_in_order() -> None:
    base = run_of([call(**LINE, source_line=n) for n in (10, 20)], num_ranks=1)
    moved = run_of([call(**LINE, source_line=n) for n in (13, 23, 23)], num_ranks=1)
    rows = by_line([base, moved])
    assert of(rows) == {"train.py:20": (1, 2), "train.py:10": (1, 1)}
    assert rows[0].detail == "in f, line 23 in another run"


def test_lines_of_a_function_that_has_more_of_them_are_compared_by_number() -> None:
    base = run_of([call(**LINE, source_line=10)], num_ranks=1)
    more = run_of([call(**LINE, source_line=n) for n in (10, 11)], num_ranks=1)
    rows = by_line([base, more])
    assert of(rows) == {"train.py:11": (0, 1), "train.py:10": (1, 1)}
    assert {row.detail for row in rows} == {"in f"}


def test_a_run_without_calls_compares_too() -> None:
    silent, busy = run_of([]), run_of([call(module="a", **LINE, source_line=1)], num_ranks=1)
    for table in (totals, by_kind, by_module, by_line):
        assert [row.values["calls"] for row in table([busy, silent])] == [(1, 0)]
        assert table([silent, silent]) == []


def test_a_value_that_covers_a_part_of_the_calls_is_unknown_beside_one_that_covers_all() -> None:
    def run(num_known: int) -> Any:
        ns = [5 if n < num_known else -1 for n in range(4)]
        return run_of([call(id=n, module="a.b", blocked_ns=each) for n, each in enumerate(ns)])

    for rows in (by_kind, by_module, totals):
        (row,) = rows([run(4), run(2), run(0)])
        known, *others = row.values["blocked_ns"]
        assert (known, [math.isnan(each) for each in others]) == (10, [True, True])
        assert row.growth("blocked_ns") == 0
    (row,) = by_kind([run(2), run(2)])
    assert row.values["blocked_ns"] == (5, 5)
