"""The benchmark of datasets: its spools belong to the run, and its bars can be missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.dataset import PREPARING, Measured, measured, table_of
from benchmarks.large_run import Plan, large_trace
from benchmarks.large_spools import write_spools
from commtrace.tracefile import read_parts

PLAN = Plan(num_ranks=8, num_calls=4000, num_layers=4)


def test_the_spools_hold_the_calls_of_the_run(tmp_path: Path) -> None:
    expected = large_trace(PLAN)
    trace = read_parts([write_spools(PLAN, tmp_path / "RUN.comm")])
    assert trace.tables["comm"] == expected.tables["comm"]
    assert trace.tables["steps"] == expected.tables["steps"]
    assert sorted(trace.rows("groups")) == sorted(expected.rows("groups"))


def test_a_run_is_measured(tmp_path: Path) -> None:
    found = measured(write_spools(PLAN, tmp_path / "RUN.comm"), repeats=1)
    assert found.num_calls == large_trace(PLAN).num_rows("comm")
    assert found.spool_bytes > 0
    assert found.dataset_bytes > 0
    assert all(seconds > 0 for seconds in found.seconds.values())


FAST = Measured(1_000_000, 8_000_000, 11_000_000, {PREPARING: 0.9, "reading of spools": 0.4})


@pytest.mark.parametrize(
    ("found", "is_met"),
    [
        (FAST, True),
        (replace(FAST, seconds={PREPARING: 1.1}), False),
        (replace(FAST, dataset_bytes=17_000_000), False),
        (replace(FAST, seconds={PREPARING: 0.9, "reading of spools": 9.0}), True),
    ],
)
def test_a_missed_bar_is_noticed(found: Measured, is_met: bool) -> None:
    assert table_of(found)[1] is is_met
