"""The critical path by hand, its sums, and how long ones are merged."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.replay.build import recorded_replay
from commtrace.analyze.replay.critical_path import critical_path, merged
from commtrace.analyze.replay.critical_share import critical_share
from commtrace.analyze.replay.longest_path import last_point, longest_path
from commtrace.analyze.replay.stretches import stretches
from tests.commtrace.analyze.rows import START_NS, call, group, op, step, trace_of
from tests.commtrace.analyze.test_second_computation import TRACES, loaded

STEPPED = ("training", "mesh", "objects", "ring", "device0", "routed0", "layouts0")


def _late_in_turn() -> Frames:
    """Rank 0 is late at the first all-reduce, and rank 1 at the second."""
    places: dict[str, Any] = {"call_ns": 0, "source_file": "train.py"}
    rows = [
        call(
            rank=rank, id=number, seq=number, at=at, until=until, blocked_ns=until - at,
            source_line=number + 1, module=f"layers.{number}",
            **places | {"call_ns": until - at},
        )
        for rank, number, at, until in [
            (0, 0, 100, 120), (1, 0, 10, 120), (0, 1, 130, 320), (1, 1, 300, 320),
        ]
    ]  # fmt: skip
    ops = [
        op(rank=0, id=0, at=0, duration_ns=90, op="mm"),
        op(rank=1, id=0, at=150, duration_ns=100, op="add"),
    ]
    steps = [step(rank, 0, 0, 130) for rank in range(2)] + [
        step(rank, 1, 130, 340) for rank in range(2)
    ]
    return load(trace_of(rows, num_ranks=2, groups=[group()], ops=ops, steps=steps))


def test_the_path_follows_the_rank_that_arrives_last() -> None:
    table = critical_path(_late_in_turn())
    columns = ["at_ns", "duration_ns", "rank", "from_rank", "step", "work", "source_line", "op"]
    rows = table.assign(at_ns=table["at_ns"] - START_NS)[columns].values.tolist()
    assert rows == [
        [0, 100, 0, -1, 0, "host work", 1, "mm"],
        [100, 20, 1, 0, 0, "transfer", 1, ""],
        [120, 10, 1, -1, 0, "host work", 2, ""],
        [130, 170, 1, -1, 1, "host work", 2, "add"],
        [300, 20, 0, 1, 1, "transfer", 2, ""],
        [320, 20, 0, -1, 1, "host work", -1, ""],
    ]
    assert table["share"].sum() == pytest.approx(1)
    assert table["module"].tolist()[:3] == ["layers.0", "layers.0", "layers.1"]
    assert set(table["mesh_axis"]) == {"tp", ""}


def test_the_shares_add_up_to_the_steady_steps() -> None:
    table = critical_share(_late_in_turn())
    assert table["duration_ns"].tolist() == sorted(table["duration_ns"], reverse=True)
    assert table.iloc[0][["work", "rank", "kind"]].tolist() == ["host work", 1, "all_reduce"]
    assert table["duration_ns"].sum() == 340
    assert table["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize("name", [name for name in TRACES if "random" not in name])
def test_stretches_are_without_gaps_from_the_origin_to_the_end_of_the_run(name: str) -> None:
    run = loaded(name)
    replay, found = recorded_replay(run), stretches(run)
    assert (found["begin"].to_numpy()[1:] == found["end"].to_numpy()[:-1]).all()
    assert (found["end"] > found["begin"]).all()
    edges = longest_path(replay)
    first = replay.graph.links.source[edges[0]]
    assert found["end"].iloc[-1] == replay.time[last_point(replay)] == replay.graph.points.at.max()
    assert found["begin"].iloc[0] <= replay.time[first]


@pytest.mark.parametrize("name", STEPPED)
def test_host_work_is_in_one_step(name: str) -> None:
    run = loaded(name)
    table = critical_path(run)
    host = table[(table["work"] == "host work") & (table["step"] >= 0)]
    steps = run.steps.set_index(["rank", "step"])
    for row in host.itertuples():
        own = steps.loc[(row.rank, row.step)]
        assert own["start_ns"] <= row.at_ns
        assert row.at_ns + row.duration_ns <= own["end_ns"]


@pytest.mark.parametrize("most", [2, 10, 57, 10_000])
def test_merged_stretches_add_up_and_keep_the_longest(most: int) -> None:
    found = stretches(loaded("mesh"))
    rows = merged(found, most)
    assert len(rows) <= max(most + 1, 3)
    assert rows["num_stretches"].sum() == len(found)
    assert (rows["begin"].to_numpy()[1:] == rows["end"].to_numpy()[:-1]).all()
    for end in ("begin", "end"):
        assert (rows[end].iloc[0], rows[end].iloc[-1]) == (
            (found["begin"].iloc[0], rows["begin"].iloc[-1])
            if end == "begin"
            else (rows["end"].iloc[0], found["end"].iloc[-1])
        )
    single = rows[rows["num_stretches"] == 1]
    longest = (found["end"] - found["begin"]).nlargest(most // 2)
    assert set(longest) <= set(single["end"] - single["begin"]) or most > len(found)


def test_a_run_without_events_has_no_path() -> None:
    empty = load(trace_of([], num_ranks=0))
    assert isinstance(critical_path(empty), pd.DataFrame)
    assert critical_path(empty).empty
    assert critical_share(empty).empty
