"""Every analysis on incomplete traces gives an answer, or a message that names the missing data."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
import pytest

from benchmarks.large_run import Plan, large_trace
from commtrace.analyze import CATALOG, Analysis, Frames, load, notices_of
from commtrace.analyze.notices import notices_on
from tests.commtrace.analyze.rows import START_NS, call, op, rank_row, run_of, step
from tests.commtrace.analyze.training import training_trace

TRAINING = load(training_trace(late_rank=2))


def only(ranks: list[int], **run: Any) -> Frames:
    """The training as if only some of its ranks had left a recording."""
    tables = {
        name: table[table["rank"].isin(ranks)].reset_index(drop=True)
        for name in ("comm", "ops", "ranks", "steps")
        for table in [getattr(TRAINING, name)]
    }
    missing = sorted(set(TRAINING.ranks["rank"]) - set(ranks))
    return replace(TRAINING, run={**TRAINING.run, "missing_ranks": missing, **run}, **tables)


def shifted(by_ns: int) -> Frames:
    """The training with rank 1's clock off: its calls seem to end before others begin."""
    comm = TRAINING.comm.copy()
    off = comm["rank"] == 1
    comm.loc[off, "issue_ns"] += by_ns
    comm.loc[off, "complete_ns"] += by_ns
    ranks = TRAINING.ranks.copy()
    ranks.loc[ranks["rank"] == 1, "clock_error_ns"] = by_ns
    run = {**TRAINING.run, "clock": "clocks of several hosts, aligned to 1 ms"}
    return replace(TRAINING, comm=comm, ranks=ranks, run=run)


def bare() -> Frames:
    """Calls with hardly any known fields."""
    return run_of([call(rank=rank, kind="", group="", phase="") for rank in range(2)], groups=[])


HARD: dict[str, Frames] = {
    "one rank of one": run_of(
        [call(id=0, seq=0, at=0, until=5, blocked_ns=5, payload_bytes=8, wire_bytes=0)],
        num_ranks=1,
        steps=[step(0, 0, 0, 9)],
    ),
    "one rank of four": only([2]),
    "a missing rank": only([0, 1, 3]),
    "no collectives": run_of(ops=[op(at=5, op="aten.mm.default")], steps=[step(0, 0, 0, 9)]),
    "no events": run_of(),
    "no rank": run_of(num_ranks=0, groups=[], run={"missing_ranks": [0, 1]}),
    "only transfers": run_of(
        [
            call(rank=0, kind="send", peer=1, seq=0, id=0, at=0, until=9, blocked_ns=9),
            call(rank=1, kind="recv", peer=0, seq=0, id=0, at=3, until=9, blocked_ns=6),
        ]
    ),
    "lost calls": run_of(
        [call(rank=0, id=7, seq=7, at=0, until=5, blocked_ns=5), call(rank=1, id=9, seq=9, at=3)],
        ranks=[rank_row(0, num_dropped=7), rank_row(1, complete=False, end_ns=START_NS)],
    ),
    "hardly anything known": bare(),
    "a clock ahead": shifted(5_000_000),
    "a clock behind": shifted(-5_000_000),
}


@cache
def notices(name: str, analysis: str) -> list[str]:
    """The texts on an analysis that say what a trace lacks."""
    return notices_on(analysis, _notices(name))


@cache
def _notices(name: str) -> Any:
    return notices_of(HARD[name])


def check_range(analysis: Analysis, table: pd.DataFrame) -> None:
    """Check that no time is negative, and no part larger than the total."""
    for column in analysis.columns:
        values = table[column.name]
        if column.unit == "ns" and column.type is int:
            assert (values >= -1).all(), column.name
        if column.unit == "ns" and column.type is float:
            assert not (values < 0).any(), column.name
        if column.name in ("last_share", "overlapped_share", "load_balance"):
            assert not (values > 1).any(), column.name


@pytest.mark.parametrize("analysis", CATALOG.values(), ids=CATALOG)
@pytest.mark.parametrize("name", HARD)
def test_a_table_without_rows_comes_with_what_is_missing(name: str, analysis: Analysis) -> None:
    frames = HARD[name]
    table = analysis.function(frames)
    check_range(analysis, table)
    assert [*table.columns] == [column.name for column in analysis.columns]
    reported = notices(name, analysis.name)
    # For these an empty table is an answer.
    is_fine = analysis.name in ("consistency", "divergences", "findings", "whatif")
    assert len(table) or reported or (is_fine and frames.num_ranks > 1 and len(frames.comm))


@pytest.mark.parametrize(
    ("name", "analysis", "message"),
    [
        ("one rank of one", "consistency", "no calls to compare with"),
        ("one rank of four", "skew", "Only one of 4 ranks is in this trace"),
        ("one rank of four", "matrix", "Ranks 0, 1, 3 left no recording"),
        ("a missing rank", "wait_states", "waits are unknown for collectives with a missing"),
        ("no collectives", "matrix", "No communication was recorded"),
        ("no rank", "by_kind", "None of the 2 ranks left a recording"),
        ("only transfers", "by_step", "No steps were marked"),
        ("only transfers", "skew", "All calls are point-to-point"),
        ("lost calls", "sizes", "7 calls were dropped"),
        ("lost calls", "sizes", "The message size is unknown"),
        ("lost calls", "bandwidth", "The message size is unknown"),
        ("lost calls", "bandwidth", "Rank 1 did not close the recording"),
        ("hardly anything known", "bandwidth", "The time of completion is unknown"),
        ("only transfers", "start_skew", "All calls are point-to-point"),
        ("a clock ahead", "bandwidth", "separate clocks (clocks of several hosts"),
        ("lost calls", "overlap", "Rank 1 did not close the recording"),
        ("hardly anything known", "activity", "The time of issue is unknown"),
        ("hardly anything known", "by_source", "The source line is unknown"),
        ("hardly anything known", "by_axis", "No process group is known to belong to an axis"),
        ("hardly anything known", "matrix", "No call is known to send data"),
        ("hardly anything known", "by_region", "No regions were marked"),
        (
            "hardly anything known",
            "findings",
            "Rule straggler: The blocked time of no call is known",
        ),
        ("a clock ahead", "skew", "separate clocks (clocks of several hosts, aligned to 1 ms)"),
    ],
)
def test_what_is_missing_is_said_where_it_matters(name: str, analysis: str, message: str) -> None:
    assert message in " ".join(notices(name, analysis))


def test_a_clock_that_is_off_changes_no_count_and_no_size() -> None:
    for name in ("by_kind", "by_module", "sizes", "matrix", "consistency"):
        tables = [CATALOG[name].function(HARD[key]) for key in ("a clock ahead", "a clock behind")]
        right = CATALOG[name].function(TRAINING)
        for table in tables:
            assert len(table) == len(right)
            for column in ("num_calls", "payload_bytes", "wire_bytes"):
                if column in right:
                    assert sorted(table[column]) == pytest.approx(sorted(right[column]))


def test_tens_of_thousands_of_calls_of_64_ranks_make_no_larger_tables_than_needed() -> None:
    plan = Plan(num_calls=30_000)
    frames = load(large_trace(plan))
    num = plan.num_ranks * plan.calls_per_step * plan.num_steps
    sizes = {name: len(analysis.function(frames)) for name, analysis in CATALOG.items()}
    assert sizes["calls"] == len(frames.comm) == num
    assert sizes["consistency"] == 0
    assert sizes["activity"] <= 4 * num
    small = {name: size for name, size in sizes.items() if name not in ("calls", "activity")}
    assert max(small.values()) <= plan.num_ranks * max(plan.num_steps, 16)
