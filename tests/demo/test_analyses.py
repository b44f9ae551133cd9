"""Analyses of the demo's trace compared with plain loops over its rows."""

from __future__ import annotations

import pytest

from commtrace.analyze import CATALOG, Analysis
from commtrace.analyze.findings import findings
from commtrace.tracefile import read_trace
from tests.commtrace.analyze.second import COMPARED, Run
from tests.commtrace.analyze.second.checked import has_cycle
from tests.commtrace.analyze.second.compare import differences
from tests.demo.conftest import Demo


@pytest.fixture(scope="module")
def run(demo: Demo) -> Run:
    return Run(read_trace(demo.trace))


@pytest.mark.parametrize("analysis", COMPARED.values(), ids=COMPARED)
def test_an_analysis_agrees_with_loops_in_every_column(
    demo: Demo, run: Run, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loops have all stretches of the path.
    monkeypatch.setattr("commtrace.analyze.replay.critical_path.MOST_ROWS", 1 << 30)
    assert differences(analysis, run, demo.frames) == []


def test_waits_are_known_and_communication_lasts_at_least_as_long_as_it_blocks(demo: Demo) -> None:
    assert CATALOG["wait_states"].function(demo.frames)["num_calls"].sum() > 100
    overlap = CATALOG["overlap"].function(demo.frames)
    assert (overlap["exposed_ns"] > 0).all()
    assert (overlap["exposed_ns"] <= overlap["communication_ns"]).all()


def test_the_ranks_of_the_demo_fit_together(demo: Demo, run: Run) -> None:
    assert CATALOG["consistency"].function(demo.frames).empty
    assert not has_cycle(run)
    rules = set(findings(demo.frames)["rule"])
    assert not rules & {
        "all_reduce_then_shard",
        "padded_shards",
        "replication_fallback",
        "outside_modules",
    }


def test_the_findings_of_the_demo_are_those_of_its_plan(demo: Demo) -> None:
    """Whatever the machine: logits are gathered for the loss, and both embeddings are summed."""
    found = findings(demo.frames)
    places = {rule: set(found.loc[found["rule"] == rule, "module"]) for rule in found["rule"]}
    assert places["gathered_logits"] == {"output"}
    is_whole = demo.mode == "tensor parallel"
    assert places.get("sums_apart", set()) == ({"pos_embeddings"} if is_whole else set())
    assert not {"metrics_each_step", "slow_link"} & {*found["rule"]}
