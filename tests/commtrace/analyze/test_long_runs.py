"""No arithmetic of an analysis overflows for a run of a week on a thousand ranks.

Two laws hold for every analysis of the catalog. If all times of a run are multiplied by k, the
times
in the table are too, and nothing else changes; the same holds for sizes. At that length the table
also agrees with the second computation, which uses Python's integers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Analysis, Frames, load
from commtrace.analyze.findings import findings
from commtrace.analyze.measures.intervals import merged
from commtrace.analyze.notices import notices_of
from commtrace.analyze.run.analysis import addable
from commtrace.report import write_report
from commtrace.schema import COMMUNICATION, COMPUTE, INSTANT, TABLES, Column
from commtrace.tracefile import Trace, trace_of_rows
from tests.commtrace.analyze.device_rows import device_trace
from tests.commtrace.analyze.rows import (
    START_NS,
    accumulated,
    kernel,
    late_at_every_other,
    late_in_turn,
    late_trace,
    random_trace,
    stalled_once,
    trace_of,
)
from tests.commtrace.analyze.second import COMPARED, Run
from tests.commtrace.analyze.second.compare import differences

WEEK_NS = 7 * 24 * 3600 * 10**9
MOST = 2**63 - 1024
"""The largest 64-bit integer that a float represents exactly."""
SCALED = {"ns": 1, "bytes/s": -1}
"""By unit, the exponent of k in a value if times are multiplied by k."""


def scaled(trace: Trace, *, times: int = 1, sizes: int = 1) -> Trace:
    """Scale the durations, the times since the start, and the sizes of a run."""

    def value(column: Column, value: Any) -> Any:
        if column.type is not int or value < 0:
            return value
        if column.unit == INSTANT:
            return START_NS + (value - START_NS) * times
        return value * {"ns": times, "bytes": sizes}.get(column.unit, 1)

    rows = {
        name: [
            tuple(map(value, columns, row))
            for row in zip(*trace.tables[name].values(), strict=True)
        ]
        for name, columns in TABLES.items()
    }
    return trace_of_rows(trace.run, rows)


def lasting_a_week(trace: Trace) -> Trace:
    ends = [*trace.tables["ranks"]["end_ns"], *trace.tables["comm"]["complete_ns"]]
    return scaled(trace, times=WEEK_NS // (max(ends) - START_NS))


def of_a_thousand_ranks() -> Trace:
    """Each rank makes 10 calls, one a step; rank 7 is late to every second call."""
    trace = late_trace(
        lambda n, rank: 3_000 * (rank == 7 and n % 2) + (n + rank) % 3, num_ranks=1000, num=10
    )
    comm = [list(row) for row in trace.rows("comm")]
    columns = [column.name for column in TABLES["comm"]]
    for row in comm:
        row[columns.index("step")] = row[columns.index("id")]
        row[columns.index("payload_bytes")] = row[columns.index("wire_bytes")] = 512
    steps = [
        (rank, n, START_NS + 10_000 * n, START_NS + 10_000 * (n + 1))
        for rank in range(1000)
        for n in range(10)
    ]
    kernels = [
        kernel(
            rank=rank, id=2 * n + place, device=f"cuda:{rank % 8}", stream=7 + place,
            at=10_000 * n + 300 * place + rank, until=10_000 * n + 4_000 * (place + 1),
            launched=10_000 * n + 100 * (rank % 3), category=category, call_id=n * place or -1,
        )
        for rank in range(1000)
        for n in range(10)
        for place, category in enumerate((COMPUTE, COMMUNICATION))
    ]  # fmt: skip
    rows = {name: list(trace.rows(name)) for name in ("groups", "ranks")}
    return trace_of_rows(trace.run, rows | {"comm": comm, "steps": steps, "kernels": kernels})


SHORT = {
    "late": late_trace(late_at_every_other),
    "stalled": late_trace(stalled_once),
    "in turn": late_trace(late_in_turn),
    "accumulated": trace_of(accumulated(by_hand=True), num_ranks=1),
    "random": random_trace(0),
    "device": device_trace(0),
}


@pytest.fixture(scope="module", params=SHORT)
def week(request: pytest.FixtureRequest) -> tuple[Run, Frames]:
    trace = lasting_a_week(SHORT[request.param])
    return Run(trace), load(trace)


@pytest.mark.parametrize("analysis", COMPARED.values(), ids=COMPARED)
def test_a_week_is_computed_as_python_s_integers_have_it(
    week: tuple[Run, Frames], analysis: Analysis
) -> None:
    assert differences(analysis, *week) == []


@pytest.mark.parametrize(
    ("name", "rule"), [("late", "straggler"), ("stalled", "stall"), ("in turn", "load_imbalance")]
)
def test_who_is_late_is_found_however_long_the_run_is(name: str, rule: str) -> None:
    shares = findings(load(SHORT[name]))["share"].tolist()
    for times in (1, 10**3, 10**6, WEEK_NS // 200_000):
        table = findings(load(scaled(SHORT[name], times=times)))
        assert table["rule"].tolist() == [rule], times
        # Lengths of a replay are whole nanoseconds.
        assert table["share"].tolist() == pytest.approx(shares, rel=1e-3, nan_ok=True)


@pytest.fixture(scope="module")
def thousand() -> tuple[Frames, Frames, int]:
    short = of_a_thousand_ranks()
    times = WEEK_NS // 100_000
    return load(short), load(scaled(short, times=times)), times


def is_close(found: list[Any], expected: list[Any]) -> bool:
    """Compare columns of a thousand ranks; `approx` would wrap each value."""
    return found == expected or found == pytest.approx(expected, nan_ok=True)


def assert_scaled(short: pd.DataFrame, long: pd.DataFrame, analysis: Analysis, k: int) -> None:
    texts = ("title", "value", "explanation")  # sentences that contain times
    for column in analysis.columns:
        before, after = short[column.name], long[column.name]
        if column.unit == INSTANT:
            expected = [
                value if value < 0 else START_NS + (value - START_NS) * k for value in before
            ]
            assert after.tolist() == expected, column.name
        elif column.unit in SCALED:
            factor = float(k) ** SCALED[column.unit]
            expected = [value if value == -1 else value * factor for value in before]
            assert is_close(after.tolist(), expected), column.name
        elif column.name not in texts:
            assert is_close(after.tolist(), before.tolist()), column.name


@pytest.mark.parametrize("analysis", CATALOG.values(), ids=CATALOG)
def test_times_of_a_thousand_ranks_grow_with_the_run_and_all_else_stays(
    thousand: tuple[Frames, Frames, int], analysis: Analysis
) -> None:
    *runs, k = thousand
    with np.errstate(all="raise"):
        short, long = (analysis.function(run) for run in runs)
    assert len(short) == len(long)
    assert_scaled(short, long, analysis, k)


def test_a_thousand_ranks_for_a_week_have_the_late_one_found_and_a_page(
    thousand: tuple[Frames, Frames, int], tmp_path: Any
) -> None:
    frames = thousand[1]
    with np.errstate(all="raise"):
        assert findings(frames)["title"].str.startswith("Rank 7 delays").tolist() == [True]
        notices_of(frames)
        page = tmp_path / "page.html"
        write_report(replace(frames, run={**frames.run, "command": "a week"}), page)
    assert "Rank 7 delays the other ranks" in page.read_text(encoding="utf-8")


@cache
def of_sizes(k: int) -> Frames:
    return load(scaled(random_trace(1), sizes=k))


@pytest.mark.parametrize(
    "analysis",
    [each for each in CATALOG.values() if any(column.unit == "bytes" for column in each.columns)],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("power", [30, 42])
def test_sizes_grow_and_stop_where_64_bits_end(analysis: Analysis, power: int) -> None:
    if analysis.name in ("findings", "calls"):  # rules have thresholds; calls are not sums
        power = 0
    k = 2**power
    tables = [analysis.function(of_sizes(each)) for each in (1, k)]
    for column in analysis.columns:
        if column.unit not in ("bytes", "bytes/s"):
            continue
        before, after = (table[column.name].tolist() for table in tables)
        most = MOST if column.type is int else math.inf
        expected = [value if value == -1 else min(value * k, most) for value in before]
        assert sorted(after) == pytest.approx(sorted(expected), nan_ok=True), column.name
        assert not any(value < -1 for value in after)


@pytest.mark.parametrize("payload", [1, 2, 3, 2**53 - 1, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1])
def test_a_size_is_in_the_row_of_the_power_of_two_below_it(payload: int) -> None:
    row = next(iter(trace_of(accumulated(num_steps=1)).rows("comm")))
    columns = [column.name for column in TABLES["comm"]]
    large = [*row]
    large[columns.index("payload_bytes")] = payload
    table = CATALOG["sizes"].function(load(trace_of([large])))
    assert table["from_bytes"].tolist() == [1 << (payload.bit_length() - 1)]


def test_sums_are_exact_as_long_as_integers_hold_them() -> None:
    exact = pd.Series([2**61 + 1, 2**61 + 3])
    assert addable(exact).sum() == 2**62 + 4
    large = pd.Series([2**62 + 1] * 4)
    assert large.sum() == 4  # 64-bit arithmetic would overflow to this
    assert addable(large).sum() == 2.0**64


def test_intervals_of_many_keys_are_joined_however_long_they_are() -> None:
    keys = np.repeat(np.arange(30_000), 2)
    start = np.tile([0, 5], 30_000)
    intervals = pd.DataFrame({"key": keys, "start": start, "end": start + WEEK_NS})
    joined = merged(intervals, ["key"])
    assert (joined["end"] - joined["start"]).unique().tolist() == [WEEK_NS + 5]
    assert len(joined) == 30_000
