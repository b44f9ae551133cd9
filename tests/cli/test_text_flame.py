"""The flame graph as lines: names, numbers, and bars below their parents' bars."""

from __future__ import annotations

import pytest

from commtrace.analyze import load
from commtrace.figures.flame import VALUES, flame_nodes
from commtrace_cli.text_flame import UNITS, Tree, flame_lines, largest
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace


@pytest.fixture
def tree() -> Tree:
    frames = run_of(
        [
            call(module="layers.0.wo", op="mm", wire_bytes=6000),
            call(module="layers.1.wo", op="mm", wire_bytes=1000),
            call(module="layers.1.wo", op="mm", kind="all_gather", wire_bytes=1000),
            call(module="", op="", wire_bytes=0),
            call(phase="backward", module="layers.1", op="add", wire_bytes=2000),
        ]
    )
    return Tree(flame_nodes(frames), "wire_bytes")


def test_a_row_is_a_node_with_what_is_all_of_it(tree: Tree) -> None:
    assert [(row.depth, row.name.replace("\u203a", ">")) for row in tree.rows()] == [
        (0, "all communication"),
        (0, "forward"),
        (1, "layers"),
        (2, "0.wo > mm > all_reduce"),
        (2, "1.wo > mm"),
        (3, "all_gather"),
        (3, "all_reduce"),
        (0, "backward"),
        (1, "layers.1 > add > all_reduce"),
    ]


def test_a_child_s_bar_stands_below_that_of_its_parent(tree: Tree) -> None:
    spans = [(row.start, row.start + row.size) for row in tree.rows()]
    assert [(round(10 * first), round(10 * last)) for first, last in spans] == [
        *((0, 10), (0, 8), (0, 8), (0, 6), (6, 8), (6, 7), (7, 8), (8, 10), (8, 10)),
    ]


def test_lines_have_the_mean_over_ranks_the_share_and_the_bar(tree: Tree) -> None:
    lines = [line.plain for line in flame_lines(list(tree.rows()), "wire_bytes", 2, 77)]
    assert [line.split()[-4:] for line in lines[:1]] == [["5", "kB", "100%", "█" * 30]]
    assert all(len(line.rstrip()) <= 77 for line in lines)
    bars = [line[77 - 30 :] for line in lines]
    assert bars[3].rstrip() == "█" * 18
    assert bars[4] == " " * 18 + "█" * 6
    assert bars[8] == " " * 24 + "█" * 6


def test_a_phase_is_the_root_of_its_own_graph(tree: Tree) -> None:
    backward = next(node.id for node in tree.nodes if node.name == "backward")
    assert [(row.depth, row.size) for row in tree.rows(backward)] == [(0, 1.0), (1, 1.0)]


def test_the_largest_rows_are_kept_with_what_they_are_part_of(tree: Tree) -> None:
    retained = largest(list(tree.rows()), 4)
    assert [row.name.split()[0] for row in retained] == ["all", "forward", "layers", "0.wo"]


def test_a_long_name_keeps_its_end() -> None:
    frames = run_of([call(module="a" * 300 + ".end", op="", kind="all_reduce", wire_bytes=1)])
    rows = list(Tree(flame_nodes(frames), "wire_bytes").rows())
    line = flame_lines(rows, "wire_bytes", 1, 80)[-1].plain
    assert len(line) <= 80
    assert "…" in line
    assert "all_reduce" in line


@pytest.mark.parametrize("value", VALUES)
def test_rows_of_a_training_run_add_up(value: str) -> None:
    frames = load(training_trace())
    nodes = flame_nodes(frames)
    rows = list(Tree(nodes, value).rows())
    assert rows[0].value == nodes.loc[0, value]
    phases = [row for row in rows[1:] if row.depth == 0]
    assert sum(row.value for row in phases) == pytest.approx(rows[0].value)
    assert sum(row.value for row in rows if row.kind) == pytest.approx(rows[0].value)


def test_every_measure_has_a_unit() -> None:
    assert UNITS.keys() == VALUES.keys()


def test_few_calls_of_many_ranks_are_counted_in_all() -> None:
    frames = run_of([call(module="m"), *(call(rank=rank, module="n") for rank in range(64))] * 2000)
    rows = list(Tree(flame_nodes(frames), "num_calls").rows())
    lines = [line.plain for line in flame_lines(rows, "num_calls", 64, 80)]
    amounts = {row.name.split()[0]: line for row, line in zip(rows, lines, strict=True)}
    assert "  130,000 in all  100%  " in amounts["all"]
    assert "     2,000 in all  " in amounts["m"]
    assert "            2,000  " in amounts["n"]
    assert {len(line.rstrip()) for line in lines[:2]} == {80}
