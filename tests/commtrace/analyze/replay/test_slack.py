"""Slack: what takes longer by its slack changes nothing, and by more delays the end by the rest."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.replay.build import recorded_replay
from commtrace.analyze.replay.graph import HOST, ISSUE, KERNEL, TRANSFER, WAIT, WorkGraph, replayed
from commtrace.analyze.replay.longest_path import (
    last_point,
    longest_path,
    slack_of_edges,
)
from commtrace.analyze.replay.slack import (
    slack,
    slack_of_calls,
    slack_of_kernels,
    slack_of_operators,
)
from tests.commtrace.analyze.replay.random_graphs import Drawn, drawn, simulated
from tests.commtrace.analyze.rows import call, trace_of
from tests.commtrace.analyze.test_second_computation import loaded

GRAPHS = [drawn(seed) for seed in range(1000, 1300)]
RUNS = ("training", "mesh", "device1", "ring", "receives", "piped0", "routed0")


def _end(graph: Drawn) -> int:
    return max(time for time in simulated(graph) if time is not None)


def _longer(graph: Drawn, edge: int, by: int) -> Drawn:
    source, target, length = graph.edges[edge]
    return Drawn(
        graph.origin,
        [*graph.edges[:edge], (source, target, length + by), *graph.edges[edge + 1 :]],
    )


def test_an_edge_longer_by_its_slack_changes_nothing_and_by_more_exactly_that() -> None:
    num_critical = 0
    for seed, graph in enumerate(GRAPHS):
        end = _end(graph)
        slacks = slack_of_edges(replayed(graph.graph(Random(seed)))).tolist()
        for edge, own in enumerate(slacks):
            assert own >= 0
            assert _end(_longer(graph, edge, own)) == end
            assert _end(_longer(graph, edge, own + 7)) == end + 7
            num_critical += own == 0
    assert num_critical > 300


def test_edges_of_the_longest_path_have_no_slack() -> None:
    for seed, graph in enumerate(GRAPHS):
        work = graph.graph(Random(seed))
        replay = replayed(work)
        path = longest_path(replay)
        assert not slack_of_edges(replay)[path].any()
        first = work.links.source[path[0]] if len(path) else last_point(replay)
        assert work.origin[first] + work.links.length[path].sum() == _end(graph)
        assert [first, *work.links.target[path]] == [
            *work.links.source[path],
            last_point(replay),
        ]


def _own_edges(graph: WorkGraph, end: int) -> np.ndarray:
    into = graph.links.target == end
    transfers = into & (graph.links.sort == TRANSFER)
    return transfers if transfers.any() else into & np.isin(graph.links.sort, [ISSUE, KERNEL])


def _end_with(graph: WorkGraph, edges: np.ndarray, by: int) -> int:
    return int(replayed(graph.with_lengths(graph.links.length + by * edges)).time.max())


def _some(values: list[int]) -> list[int]:
    return Random(0).sample(values, min(len(values), 40))


@pytest.mark.parametrize("name", RUNS)
def test_a_call_longer_by_its_slack_changes_nothing_and_by_more_exactly_that(name: str) -> None:
    graph = recorded_replay(loaded(name)).graph
    end, slacks = int(replayed(graph).time.max()), slack_of_calls(loaded(name))
    assert len(slacks)
    for row in _some(slacks.index.tolist()):
        own = _own_edges(graph, graph.calls["end_point"][row])
        assert _end_with(graph, own, slacks[row]) == end
        assert _end_with(graph, own, slacks[row] + 9) == end + 9


def test_a_kernel_longer_by_its_slack_changes_nothing_and_by_more_exactly_that() -> None:
    graph = recorded_replay(loaded("device1")).graph
    end, slacks = int(replayed(graph).time.max()), slack_of_kernels(loaded("device1"))
    assert len(slacks)
    ends = np.flatnonzero(graph.links.sort == KERNEL)
    of_row = dict(
        zip(graph.points.row[graph.links.target[ends]], graph.links.target[ends], strict=True)
    )
    for row in _some(slacks.index.tolist()):
        own = _own_edges(graph, of_row[row])
        assert _end_with(graph, own, slacks[row]) == end
        assert _end_with(graph, own, slacks[row] + 9) == end + 9


@pytest.mark.parametrize("name", RUNS)
def test_the_slack_of_an_operator_is_the_least_of_the_host_during_it(name: str) -> None:
    run = loaded(name)
    replay = recorded_replay(run)
    links, points = replay.graph.links, replay.graph.points
    slacks = slack_of_edges(replay)
    own = np.isin(links.sort, [HOST, ISSUE, WAIT])
    found = slack_of_operators(run)
    for row in _some(found.index.tolist()):
        operator = run.ops.loc[row]
        start = operator["start_ns"] - run.start_ns
        during = own & (points.rank[links.target] == operator["rank"])
        during &= replay.time[links.target] > start
        during &= replay.time[links.source] < start + operator["duration_ns"]
        # Other threads of the rank have chains of their own.
        chains = {*points.chain[links.target[during]].tolist()}
        least = [slacks[during & (points.chain[links.target] == chain)].min() for chain in chains]
        assert found[row] in least


def _two_ranks() -> Frames:
    from commtrace.analyze import load

    rows = [
        call(rank=rank, id=number, seq=number, at=at, until=until)
        for rank, number, at, until in [
            (0, 0, 0, 40),
            (1, 0, 30, 40),
            (0, 1, 50, 90),
            (1, 1, 80, 90),
        ]
    ]
    return load(trace_of(rows, num_ranks=2))


def test_the_table_counts_calls_without_slack_by_hand() -> None:
    frames = _two_ranks()
    table = slack(frames)
    assert table["num_calls"].sum() == 4
    # Rank 1 arrives last at both; its first transfer ends where its own work goes on.
    found = slack_of_calls(frames)
    rows = frames.comm.set_index(["rank", "id"], append=True).reset_index(level=0)["level_0"]
    assert found[rows[1, 0]] == 0
    assert found[rows[0, 0]] > 0
    assert table["num_critical"].tolist() == [int((found == 0).sum())]


def test_a_changed_graph_is_noticed() -> None:
    graph = recorded_replay(loaded("training")).graph
    longer = replace(graph.links, length=graph.links.length + 1)
    assert int(replayed(replace(graph, links=longer)).time.max()) > int(graph.points.at.max())
