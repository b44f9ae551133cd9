"""Marker `same_values` together with the marker `comms`, reports of failed tests and baselines."""

from __future__ import annotations

import json

from commtrace.tracefile import read_trace
from tests.commtrace.pytest_plugin.test_same_values import MODEL

pytest_plugins = ["pytester"]

BODY = (
    MODEL
    + """
import os
same = pytest.mark.same_values(layouts=[{}, {"tp": 2}], ranks=run_threads)

@pytest.mark.comms
@same
def test_recorded(layout):
    train(layout, lambda grad: grad * float(os.environ.get("FACTOR", 1)))
    for _ in range(int(os.environ.get("TIMES", 0)) if layout.mesh else 0):
        dist.all_reduce(torch.ones(4))

@same
def test_not_recorded(layout):
    train(layout, lambda grad: grad * float(os.environ.get("FACTOR", 1)))
"""
)


def test_a_report_is_saved_of_a_recorded_test_that_differs(project, monkeypatch) -> None:
    monkeypatch.setenv("FACTOR", "2")
    text = project.failure(BODY, "--comms-report=kept")
    # Not in the summary, which pytest cuts short unless CI is set.
    failures = text.partition("short test summary")[0]
    wrong = "layout tp=2: gradient up.weight is wrong in tp=2: it is 2 times"
    assert failures.count(wrong) == 2
    (folder,) = (project.path / "kept").iterdir()
    assert folder.name == "test_it.py_test_recorded"
    # The first layout is on one device, the second one has the ranks of the trace.
    assert sorted(path.name for path in folder.iterdir()) == ["run.html", "run.json"]
    assert f"saved: {folder}" in text
    assert read_trace(folder / "run.json").num_rows("comm") > 0


def test_an_expected_failure_saves_no_report(project) -> None:
    body = """
@pytest.mark.comms
def test_expected():
    run_threads(reduce, 2)
    pytest.xfail("known")

@pytest.mark.comms
def test_fails():
    run_threads(reduce, 2)
    pytest.fail("unknown")
"""
    project.failure(body, "--comms-report=kept")
    assert [each.name for each in (project.path / "kept").iterdir()] == ["test_it.py_test_fails"]


def test_a_baseline_is_that_of_all_layouts(project, monkeypatch) -> None:
    project.passes(BODY, "--comms-update")
    (path,) = project.path.rglob("*.json")
    assert set(json.loads(path.read_text())["tests"]) == {"test_recorded"}
    project.passes(BODY, "--comms-baseline=same")
    monkeypatch.setenv("TIMES", "1")
    text = project.failure(BODY, "--comms-baseline=increase")
    assert "communicates more than its baseline" in text
    assert "1 failed, 1 passed" in text
