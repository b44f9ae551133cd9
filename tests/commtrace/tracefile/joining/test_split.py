"""A trace that is split into the recordings of its ranks, and joined with recordings of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.event import CommEvent, GroupRow, RankRow, StepRow
from commtrace.tracefile import Trace, join, read_parts, read_trace, trace_of_rows, write_trace
from commtrace.tracefile.joining.split import spools_of
from tests.commtrace.synthetic import START_NS, write_synthetic_run

GOLD = Path(__file__).parents[3] / "gold"
OF_FORMAT_5 = ("boot", "epoch_ns", "clock_offset_ns")


def columns(trace: Trace, table: str) -> dict[str, list[Any]]:
    """A table's columns as lists of text, in which nan equals itself."""
    return {name: list(map(str, values)) for name, values in trace.tables[table].items()}


@pytest.mark.parametrize("path", sorted(GOLD.glob("*.json")), ids=lambda path: path.stem)
def test_splitting_and_joining_changes_nothing(path: Path) -> None:
    trace = read_trace(path)
    again = join(spools_of(trace))
    for table in trace.tables:
        before, after = columns(trace, table), columns(again, table)
        if table == "ranks" and trace.version < 5:
            for name in OF_FORMAT_5:
                del before[name], after[name]
            if trace.version < 3:  # which did not state the error of one clock
                del before["clock_error_ns"], after["clock_error_ns"]
        assert after == before
    assert {**trace.run, "steps_from": again.run["steps_from"]} == again.run


def test_a_synthetic_run_of_many_ranks_comes_back(tmp_path: Path) -> None:
    trace = read_trace(write_synthetic_run(tmp_path / "run.json", world_size=6, num_steps=3))
    again = join(spools_of(trace))
    assert {name: columns(again, name) for name in again.tables} == {
        name: columns(trace, name) for name in trace.tables
    }
    assert again.run == trace.run


def node(rank: int, boot: str, shift_ns: int, *, name: str = "0") -> Trace:
    """A run file of one of two ranks, on a host whose wall clock is off by `shift_ns`."""
    start = START_NS + shift_ns
    calls = [
        CommEvent(
            rank=rank, id=number, kind="barrier", group=name, seq=number,
            issue_ns=start + 10_000_000 * number + 1000 * rank, call_ns=5000,
            complete_ns=start + 10_000_000 * number + 5000, blocked_ns=4000,
        )
        for number in range(4)
    ]  # fmt: skip
    end = start + 50_000_000
    row = RankRow(
        rank=rank, host=f"node{rank}", pid=7, device="cpu", start_ns=start, end_ns=end,
        num_events=4, complete=True, boot=boot, epoch_ns=start - 1000, clock_offset_ns=0,
        clock_error_ns=0,
    )  # fmt: skip
    facts = {"world_size": 2, "missing_ranks": [1 - rank], "torn_ranks": [], "clock": "one clock"}
    group = GroupRow(name=name, ranks="0,1", size=2, backend="gloo")
    steps = [StepRow(rank, 0, start, end)]
    return trace_of_rows(
        {**facts, "steps_from": "optimizer"},
        {"comm": calls, "groups": [group], "ranks": [row], "steps": steps},
    )


def test_files_of_two_hosts_are_aligned_by_their_calls(tmp_path: Path) -> None:
    shift = 3_000_000_000
    paths = [
        write_trace(node(0, "a", 0), tmp_path / "node0.json"),
        write_trace(node(1, "b", shift), tmp_path / "node1.json"),
    ]
    trace = read_parts(paths)
    assert trace.run["missing_ranks"] == []
    assert trace.run["clock"].startswith("clocks of several hosts")
    offset = trace.tables["ranks"]["clock_offset_ns"][1]
    assert abs(offset + shift) <= trace.tables["ranks"]["clock_error_ns"][1] < 10_000
    assert list(trace.tables["steps"]["step"]) == [0, 0]
    assert trace.run["steps_from"] == "optimizer"


def test_files_of_one_running_system_are_aligned_exactly(tmp_path: Path) -> None:
    paths = [
        write_trace(node(0, "a", 0), tmp_path / "node0.json"),
        write_trace(node(1, "a", 5_000), tmp_path / "node1.json"),
    ]
    ranks = read_parts(paths).tables["ranks"]
    assert list(ranks["clock_offset_ns"]) == [0, -5_000]
    assert list(ranks["clock_error_ns"]) == [0, 0]


def test_a_name_that_joining_made_distinct_is_that_of_the_rank_again() -> None:
    first = spools_of(node(0, "a", 0))[0]
    assert set(spools_of(node(0, "a", 0, name="0 [0,1]"))[0].tables["groups"]["name"]) == {"0"}
    assert set(first.tables["groups"]["name"]) == {"0"}


def test_a_rank_in_several_parts_counts_once(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.json", world_size=2)
    trace = read_parts([path, path, write_trace(read_trace(path), tmp_path / "copy.json")])
    assert columns(trace, "comm") == columns(read_trace(path), "comm")
    assert "left_out_spools" not in trace.run


def test_runs_of_other_identities_are_left_out(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        trace = node(number, "a", number * 10**12)
        identified = Trace({**trace.run, "run_id": name}, trace.tables)
        write_trace(identified, tmp_path / f"{name}.json")
    trace = read_parts([tmp_path])
    assert trace.run["left_out_spools"] == ["old.json"]
    assert list(trace.tables["ranks"]["rank"]) == [1]
    assert trace.run["missing_ranks"] == [0]
