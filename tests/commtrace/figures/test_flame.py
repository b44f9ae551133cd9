from __future__ import annotations

import importlib

import pandas as pd
import plotly.graph_objects as go
import pytest

from commtrace.analyze import load
from commtrace.analyze.measures.measures import totals
from commtrace.errors import UsageError
from commtrace.figures.flame import NO_MODULE, VALUES, flame, flame_nodes
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.rows import call, random_trace, run_of
from tests.commtrace.analyze.training import training_trace

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def small() -> pd.DataFrame:
    return flame_nodes(
        run_of(
            [
                call(rank=0, phase="backward", module="b", op="mm", wire_bytes=1),
                call(rank=0, module="a.0", op="mm", wire_bytes=2, blocked_ns=20, at=0, until=90),
                call(rank=1, module="a.0", op="mm", wire_bytes=3, blocked_ns=30),
                call(rank=0, module="a", op="add", kind="all_gather", wire_bytes=4, blocked_ns=1),
                call(rank=0, module="", op="", kind="barrier", wire_bytes=0),
            ]
        )
    )


def paths(nodes: pd.DataFrame) -> dict[str, tuple[float, ...]]:
    """Values of each node, by its path from the root."""
    names: dict[int, str] = {-1: ""}
    found = {}
    for node in nodes.itertuples(index=False):
        names[node.id] = f"{names[node.parent]}/{node.role}:{node.name}"
        found[names[node.id]] = tuple(getattr(node, value) for value in VALUES)
    return found


def test_nodes_lead_from_phase_over_module_and_operator_to_kind(small: pd.DataFrame) -> None:
    run = "/run:"
    forward = f"{run}/phase:forward"
    assert paths(small) == {
        run: (10, 90, 51, 5),
        forward: (9, 90, 51, 4),
        f"{forward}/module:": (0, 0, 0, 1),
        f"{forward}/module:/kind:barrier": (0, 0, 0, 1),
        f"{forward}/module:a": (9, 90, 51, 3),
        f"{forward}/module:a/op:add": (4, 0, 1, 1),
        f"{forward}/module:a/op:add/kind:all_gather": (4, 0, 1, 1),
        f"{forward}/module:a/module:a.0": (5, 90, 50, 2),
        f"{forward}/module:a/module:a.0/op:mm": (5, 90, 50, 2),
        f"{forward}/module:a/module:a.0/op:mm/kind:all_reduce": (5, 90, 50, 2),
        f"{run}/phase:backward": (1, 0, 0, 1),
        f"{run}/phase:backward/module:b": (1, 0, 0, 1),
        f"{run}/phase:backward/module:b/op:mm": (1, 0, 0, 1),
        f"{run}/phase:backward/module:b/op:mm/kind:all_reduce": (1, 0, 0, 1),
    }


@pytest.mark.parametrize("trace", [random_trace(0), random_trace(1), training_trace()])
def test_a_node_is_as_wide_as_its_children_and_the_root_as_the_run(trace: object) -> None:
    frames = load(trace)
    nodes = flame_nodes(frames)
    inside = nodes[nodes["role"] != "kind"].set_index("id")
    children = nodes[nodes["parent"] >= 0].groupby("parent")[list(VALUES)].sum()
    sums = totals(frames, ["kind"]).sum()
    for value in VALUES:
        assert children[value].to_dict() == inside[value].to_dict()
        assert nodes.loc[0, value] == sums[value]


def test_the_root_module_goes_by_its_class_and_what_is_outside_of_any_by_none() -> None:
    calls = [call(module="", module_class="Transformer"), call(module="", module_class="")]
    modules = flame_nodes(run_of(calls)).query("role == 'module'")
    assert modules["name"].tolist() == ["", "Transformer"]


def test_a_parent_comes_before_its_children(small: pd.DataFrame) -> None:
    assert (small["parent"] < small["id"]).all()
    assert small["id"].tolist() == list(range(len(small)))


def test_what_is_too_small_to_be_seen_is_left_out() -> None:
    calls = [call(module="big", wire_bytes=10**9, blocked_ns=10**9) for _ in range(5000)]
    frames = run_of([*calls, call(module="small", wire_bytes=1, blocked_ns=1)])
    assert "small" not in set(flame_nodes(frames)["name"])
    assert "big" in set(flame_nodes(frames)["name"])


def drawn(figure: go.Figure) -> go.Icicle:
    (trace,) = figure.data
    return trace


@pytest.mark.parametrize("value", VALUES)
def test_a_flame_graph_draws_the_nodes(value: str) -> None:
    frames = load(training_trace())
    nodes, trace = flame_nodes(frames), drawn(flame(frames, value=value))
    assert list(trace.values) == nodes[value].tolist()
    assert list(trace.ids) == [str(number) for number in nodes["id"]]
    assert list(trace.parents) == ["", *(str(number) for number in nodes["parent"][1:])]
    assert trace.branchvalues == "total"


def test_a_phase_is_a_level_of_the_one_tree() -> None:
    frames = load(training_trace())
    figure = flame(frames, phase="backward")
    level = int(drawn(figure).level)
    nodes = flame_nodes(frames).set_index("id")
    assert (nodes.loc[level, "role"], nodes.loc[level, "name"]) == ("phase", "backward")
    assert figure.layout.meta["phases"]["backward"] == str(level)
    assert drawn(flame(frames)).level == "0"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_kind_has_its_colour(theme: object) -> None:
    trace = drawn(flame(load(training_trace()), theme=theme))
    colours = dict(zip(trace.labels, trace.marker.colors, strict=True))
    assert colours["all_reduce"] == theme.kinds["all_reduce"]
    assert colours["broadcast"] == theme.kinds["broadcast"]
    assert colours["forward"] == theme.phases["forward"]


def test_a_numbered_module_is_labelled_with_the_one_it_is_in() -> None:
    labels = drawn(flame(load(training_trace()))).labels
    assert "layers.0" in labels
    assert "wo" in labels
    assert NO_MODULE in labels
    assert "" not in labels


def test_the_hover_text_says_what_one_rank_does() -> None:
    frames = run_of(
        [
            call(rank=rank, module="m", at=0, wire_bytes=3000, blocked_ns=5_000_000)
            for rank in range(2)
        ]
        + [call(rank=0, module="n", at=0, wire_bytes=6000, blocked_ns=0)]
    )
    trace = drawn(flame(frames))
    texts = dict(zip(trace.labels, trace.hovertext, strict=True))
    assert texts["m"] == (
        "<b>m</b><br>forward &gt; m<br>mean over ranks:<br>"
        "sent 3 kB (50.0% of all)<br>time 5 ms (100.0% of all)<br>"
        "exposed 5 ms (100.0% of all)<br>"
        "calls 1 (66.7% of all)"
    )


def test_the_hover_text_of_calls_that_were_not_timed_does_not_say_0() -> None:
    timed = {"at": 0, "until": 5_000_000, "blocked_ns": 5_000_000, "wire_bytes": 3000}
    calls = [call(module="m", **timed), call(id=1, module="m"), call(id=2, module="n", at=9)]
    trace = drawn(flame(run_of(calls, num_ranks=1)))
    texts = dict(zip(trace.labels, trace.hovertext, strict=True))
    part = "known for 1 of 2 calls"
    assert texts["m"].split("mean over ranks:<br>")[1] == (
        f"sent 3 kB (100.0% of all), {part}<br>time 5 ms (100.0% of all), {part}<br>"
        f"exposed 5 ms (100.0% of all), {part}<br>calls 2 (66.7% of all)"
    )
    none = "not known for 1 of 1 call"
    assert texts["n"].split("mean over ranks:<br>")[1] == (
        f"sent {none}<br>time {none}<br>exposed {none}<br>calls 1 (33.3% of all)"
    )


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([call(), call(id=1)], "not known for 2 of 2 calls"),
        ([call(), call(id=1, wire_bytes=0)], "zero, known for 1 of 2 calls"),
        ([call(wire_bytes=0), call(id=1, wire_bytes=0)], "zero"),
    ],
)
def test_a_measure_that_is_not_known_is_not_said_to_be_zero(calls: list, reason: str) -> None:
    figure = flame(run_of(calls), value="wire_bytes")
    assert figure.layout.annotations[0].text == (
        f"Nothing to draw by bytes sent, which is {reason}."
    )


def test_few_calls_of_many_ranks_are_counted_in_all_in_the_hover_text() -> None:
    few = [call(module="m", id=n) for n in range(3)] + [call(module="n", id=3)]
    trace = drawn(flame(run_of(few, num_ranks=64)))
    texts = dict(zip(trace.labels, trace.hovertext, strict=True))
    assert texts["m"].endswith("<br>calls 3 in all (75.0% of all)")


def test_names_from_the_trace_are_no_markup() -> None:
    frames = run_of(
        [call(phase=HOSTILE, module=f"a.{HOSTILE}", op=HOSTILE, kind=HOSTILE, wire_bytes=1)]
    )
    trace = drawn(flame(frames))
    for text in (*trace.labels, *trace.hovertext):
        assert "<img" not in text
    assert any("&lt;img" in text for text in trace.labels)


def test_widths_are_by_default_the_first_measure_that_is_not_zero() -> None:
    frames = run_of([call(module="a", wire_bytes=0, blocked_ns=7)])
    assert drawn(flame(frames)).values[0] == 7
    both = run_of([call(module="a", wire_bytes=5, blocked_ns=7)])
    assert drawn(flame(both)).values[0] == 5


def test_a_measure_that_is_zero_is_said_to_be_instead_of_drawn() -> None:
    figure = flame(run_of([call(wire_bytes=0)]), value="wire_bytes", because="There is one rank.")
    assert len(figure.data) == 0
    assert figure.layout.annotations[0].text == (
        "Nothing to draw by bytes sent, which is zero: There is one rank."
    )


def test_a_run_without_communication_draws_nothing() -> None:
    assert len(flame(run_of()).data) == 0
    assert flame_nodes(run_of()).empty


def test_an_unknown_value_or_phase_is_refused_with_those_that_exist() -> None:
    frames = load(training_trace())
    with pytest.raises(UsageError, match="one of wire_bytes, time_ns, blocked_ns, num_calls"):
        flame(frames, value="colour")
    with pytest.raises(UsageError, match="communication in forward, backward, other"):
        flame(frames, phase="sideways")


def test_with_a_title_the_kinds_are_in_a_legend() -> None:
    graph, *entries = flame(load(training_trace()), title="Where").data
    kinds = set(flame_nodes(load(training_trace())).query("role == 'kind'")["name"])
    assert graph.type == "icicle"
    assert {entry.name for entry in entries} == kinds
    assert all(entry.marker.color == LIGHT.kinds[entry.name] for entry in entries)


def test_the_sort_key_of_a_module_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flame_module = importlib.import_module("commtrace.figures.flame")
    made: list[str] = []
    key = flame_module.natural_key
    monkeypatch.setattr(flame_module, "natural_key", lambda name: made.append(name) or key(name))
    flame_module.flame_nodes(run_of([call(module=".".join("m" * 100))]))
    assert len(made) == len(set(made)) == 100
