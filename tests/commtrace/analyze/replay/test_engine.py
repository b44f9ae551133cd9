"""The engine on random graphs, compared with a second simulator, as Python and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commtrace.analyze.replay import engine
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.engine import (
    OutgoingEdges,
    PointTimes,
    latest,
    reached,
)
from commtrace.analyze.replay.graph import replayed
from commtrace.tracefile import write_trace
from tests.commtrace.analyze.replay.random_graphs import Drawn, behind_cycles, drawn, simulated
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES, loaded
from tests.test_imports import loaded_modules

SEEDS = range(300)
GRAPHS = [drawn(seed, has_cycles=seed % 3 == 0) for seed in SEEDS]


@pytest.fixture(params=["python", "compiled"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    most = -1 if request.param == "compiled" else 1 << 40
    monkeypatch.setattr(engine, "MOST_EDGES_OF_PYTHON", most)


def _reached(graph: Drawn) -> tuple[OutgoingEdges, np.ndarray, PointTimes]:
    source, target, length, origin = graph.arrays()
    edges = OutgoingEdges.of(source, target, graph.num_points)
    return edges, length, reached(edges, length, origin)


def _end(graph: Drawn) -> int:
    return max(time for time in simulated(graph) if time is not None)


@pytest.mark.usefixtures("walk")
def test_times_are_those_of_the_second_simulator() -> None:
    for graph in GRAPHS:
        _, _, times = _reached(graph)
        found = [
            int(time) if is_reached else None
            for time, is_reached in zip(times.time, times.is_reached, strict=True)
        ]
        assert found == simulated(graph), graph


@pytest.mark.usefixtures("walk")
def test_points_behind_cycles_are_not_reached() -> None:
    num_cyclic = 0
    for graph in GRAPHS:
        never = behind_cycles(graph)
        _, _, times = _reached(graph)
        assert set(np.flatnonzero(~times.is_reached).tolist()) == never
        assert len(times.order) == graph.num_points - len(never)
        num_cyclic += bool(never)
    assert num_cyclic > 50


@pytest.mark.usefixtures("walk")
def test_every_edge_leads_forward_in_the_order_of_points() -> None:
    for graph in GRAPHS:
        _, _, times = _reached(graph)
        place = {int(point): number for number, point in enumerate(times.order)}
        for source, target, _ in graph.edges:
            assert target not in place or place[source] < place[target]


@pytest.mark.usefixtures("walk")
def test_a_point_at_its_latest_time_leaves_the_end_and_a_later_one_delays_it() -> None:
    for graph in (each for each in GRAPHS if not behind_cycles(each)):
        end = _end(graph)
        edges, length, times = _reached(graph)
        for point, until in enumerate(latest(edges, length, times, end).tolist()):
            for delay in (0, 7):
                origin = [*graph.origin]
                origin[point] = until + delay
                assert _end(Drawn(origin, graph.edges)) == end + delay


def test_a_wrong_simulator_is_noticed() -> None:
    graph = drawn(4)
    assert simulated(Drawn([0, None], [(0, 1, 3)])) == [0, 3]
    assert simulated(graph) != simulated(Drawn(graph.origin, graph.edges[1:]))


UNPHYSICAL = "random times are not those of any program: waits end before what they wait for"
CONSISTENT = [name for name in (TRACES | FAULTY) if "random" not in name]  # UNPHYSICAL


@pytest.mark.parametrize("name", CONSISTENT)
def test_an_unchanged_replay_is_the_recorded_run(name: str) -> None:
    graph = work_graph(loaded(name))
    replay = replayed(graph)
    assert replay.times.is_reached.all()
    assert (replay.time == graph.points.at).all()


def test_small_graphs_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_compiled", None)
    assert len(replayed(work_graph(loaded("training"))).time)


COMMAND = """
import sys
from commtrace_cli.main import main
sys.argv = ["commtrace", "table", {path!r}, {table!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.parametrize("table", ["critical_path", "slack"])
def test_commands_on_small_runs_do_not_load_numba(table: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_trace(TRACES["training"], path)
    modules = loaded_modules(COMMAND.format(path=str(path), table=table))
    assert "commtrace.analyze.replay.engine" in modules
    assert "numba" not in modules
    assert "numba" in loaded_modules("import numba")
