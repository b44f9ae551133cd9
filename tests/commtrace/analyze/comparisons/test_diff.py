from __future__ import annotations

import math
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.comparisons.diff import DIFF, KEYS, diff, differences_of_runs, increases
from commtrace.analyze.comparisons.growth import totals
from commtrace.tracefile import Trace
from tests.commtrace.analyze.by_hand import rows
from tests.commtrace.analyze.rows import call, group, random_trace, rank_row, run_of, step
from tests.commtrace.analyze.training import training_trace


def changes_of(before: Any, after: Any, *columns: str) -> list[tuple[Any, ...]]:
    return list(diff(before, after)[list(columns)].itertuples(index=False, name=None))


def test_what_was_added_removed_and_changed_comes_before_what_is_the_same() -> None:
    same = call(module="a", wire_bytes=1, blocked_ns=0)
    old = call(module="b", wire_bytes=2, blocked_ns=0)
    before = run_of([same, old, call(module="c", wire_bytes=3, blocked_ns=4)], num_ranks=1)
    after = run_of(
        [
            same,
            call(module="c", wire_bytes=9, blocked_ns=1),
            call(module="d", wire_bytes=0, blocked_ns=0),
        ],
        num_ranks=1,
    )
    assert changes_of(
        before, after, "change", "module", "wire_bytes_change", "blocked_ns_change"
    ) == [
        ("added", "d", 0, 0),
        ("removed", "b", -2, 0),
        ("changed", "c", 6, -3),
        ("same", "a", 0, 0),
    ]


def test_what_a_run_does_not_know_is_no_change_to_nothing() -> None:
    known, unknown = (run_of([call(wire_bytes=8, blocked_ns=ns)]) for ns in (5, -1))
    (row,) = diff(known, unknown).to_dict("records")
    assert (row["change"], row["wire_bytes_change"]) == ("same", 0)
    assert math.isnan(row["blocked_ns_after"])
    assert math.isnan(row["blocked_ns_change"])
    (row,) = diff(known, run_of([])).to_dict("records")
    assert (row["change"], row["blocked_ns_after"]) == ("removed", 0)


def part_known(num_known: int, num: int = 4, blocked_ns: int = 5) -> Any:
    """A run of equal calls; some know the blocked time."""
    calls = [
        call(id=n, wire_bytes=8, blocked_ns=blocked_ns if n < num_known else -1) for n in range(num)
    ]
    return run_of(calls, num_ranks=1)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (part_known(4), part_known(4), 0),
        (part_known(2), part_known(2), 0),
        (part_known(2), part_known(4, 8), 10),  # half of each is known
        (part_known(2), part_known(4), math.nan),
        (part_known(4), part_known(2), math.nan),
        (part_known(0), part_known(4), math.nan),
        (part_known(4), part_known(0), math.nan),
        (run_of(num_ranks=1), part_known(2), math.nan),
        (run_of(num_ranks=1), part_known(4), 20),
    ],
)
def test_what_only_one_run_knows_is_no_growth(before: Any, after: Any, change: float) -> None:
    (row,) = diff(before, after).to_dict("records")
    assert row["blocked_ns_change"] == pytest.approx(change, nan_ok=True)
    grew = increases(diff(before, after), "time")
    assert grew == (
        {"run": (row["blocked_ns_before"], row["blocked_ns_after"])} if change > 0 else {}
    )
    (grown,) = totals([before, after])
    assert grown.growth("blocked_ns") == pytest.approx(0 if math.isnan(change) else change)


def test_a_note_says_of_how_many_calls_a_run_lacks_the_time() -> None:
    assert differences_of_runs(part_known(4), part_known(3)) == [
        "The second run lacks the blocked time of 1 of 4 calls: places where another run has more "
        "or fewer known values are not compared."
    ]


def test_runs_of_different_length_compare_by_step() -> None:
    short = run_of([call(step=0)], num_ranks=1, steps=[step(0, 0, 0, 9)])
    calls = [call(id=n, step=n) for n in range(4)]
    long = run_of(calls, num_ranks=1, steps=[step(0, n, 0, 9) for n in range(4)])
    assert changes_of(short, long, "change", "scope", "calls_after") == [("same", "step", 1)]
    assert changes_of(short, run_of(calls, num_ranks=1), "scope", "calls_change") == [("run", 3)]


def test_a_group_goes_by_its_axis_whatever_its_name() -> None:
    before = run_of([call(group="7")], groups=[group("7")])
    after = run_of([call(group="9")], groups=[group("9")])
    assert changes_of(before, after, "change", "group") == [("same", "tp")]


def test_only_a_sum_that_grew_beyond_the_tolerance_is_an_increase() -> None:
    before = run_of([call(module="a", wire_bytes=100, blocked_ns=10)], num_ranks=1)
    after = run_of([call(module="b", wire_bytes=110, blocked_ns=10)], num_ranks=1)
    table = diff(before, after)
    assert increases(table, "calls") == {}
    assert increases(table, "time") == {}
    assert increases(table, "bytes") == {"run": (100, 110)}
    assert increases(table, "bytes", 0.1) == {}


def test_what_makes_runs_hard_to_compare_is_said() -> None:
    known = {"wire_bytes": 8, "blocked_ns": 5}
    two = run_of([call(**known)], ranks=[rank_row(0, num_dropped=3), rank_row(1)])
    one = run_of([call(step=0, **known)], num_ranks=1, steps=[step(0, 0, 0, 9)])
    assert [text.split(":")[0] for text in differences_of_runs(two, one)] == [
        "The runs have 2 and 1 ranks",
        "Only one of the runs marks steps, so numbers are over the entire runs.",
        "The first run has lost 3 calls",
    ]
    timeless = run_of([call(wire_bytes=8)], num_ranks=1, steps=[step(0, 0, 0, 9)])
    assert differences_of_runs(one, one, timeless) == [
        "The third run lacks the blocked time of all calls: not compared."
    ]
    assert differences_of_runs(one, two, one)[:2] == [
        "The runs have 1, 2 and 1 ranks: numbers are means over each run's ranks, and the bytes "
        "sent per rank depend on the number of ranks.",
        "Only some of the runs mark steps, so numbers are over the entire runs.",
    ]


def sums_of(trace: Trace) -> dict[tuple[str, ...], list[float]]:
    axes = {each.name: each.mesh_axis for each in rows(trace, "groups")}
    num_ranks = len(rows(trace, "ranks"))
    num_steps = len({each.step for each in rows(trace, "steps")})
    sums: dict[tuple[str, ...], list[float]] = {}
    for each in rows(trace, "comm"):
        scope = "step" if each.step >= 0 else "run"
        where = axes.get(each.group, "") or each.group
        key = (scope, each.module, each.op, each.kind, where, each.phase)
        part = 1 / num_ranks / (num_steps if scope == "step" else 1)
        values = sums.setdefault(key, [0.0, math.nan])
        values[0] += part
        if each.wire_bytes >= 0:
            values[1] = (0.0 if math.isnan(values[1]) else values[1]) + each.wire_bytes * part
    return sums


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (random_trace(1), random_trace(2)),
        (training_trace(), training_trace(sequence_parallel=True, num_steps=5)),
    ],
)
def test_a_difference_agrees_with_loops(before: Trace, after: Trace) -> None:
    first, second = sums_of(before), sums_of(after)
    table = diff(load(before), load(after))
    assert len(table) == len(first.keys() | second.keys())
    for row in table.to_dict("records"):
        key = tuple(row[name] for name in KEYS)
        old, new = first.get(key, [0, 0]), second.get(key, [0, 0])
        assert [row["calls_before"], row["wire_bytes_before"]] == pytest.approx(old, nan_ok=True)
        assert [row["calls_after"], row["wire_bytes_after"]] == pytest.approx(new, nan_ok=True)
        assert (row["change"] == "added") == (key not in first)
        assert (row["change"] == "removed") == (key not in second)


@pytest.mark.parametrize("frames", [run_of(), run_of(num_ranks=0, groups=[])])
def test_runs_without_calls_have_no_difference(frames: Any) -> None:
    assert diff(frames, frames).empty
    assert DIFF.function(frames).empty
