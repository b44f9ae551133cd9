"""`commtrace.compare`: a comparison that displays itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import commtrace
from commtrace.errors import UsageError
from commtrace.tracefile import write_trace
from tests.commtrace.analyze.rows import run_of
from tests.commtrace.analyze.values.rows import held_by_one, trace_of_one
from tests.commtrace.report.test_values_page import values

HOSTILE = "<script>x</script>\u202e"


def test_a_wrong_run_displays_its_fault_and_its_wrong_tensors(tmp_path: Path) -> None:
    paths = [
        write_trace(trace_of_one(values(factor=factor)), tmp_path / f"{factor:g}.json")
        for factor in (1.0, 3.0)
    ]
    found = commtrace.compare(*paths)
    assert not found.agrees
    first, *lines = repr(found).splitlines()
    assert first == (
        "output gradient of layers.1 is wrong in 3.json: it is 3 times what it should be"
    )
    assert "  the last tensor that agrees is output gradient of layers.0" in lines
    shown = found._repr_html_()
    assert f"<b>{first}</b>" in shown
    assert shown.count("<td>output gradient of layers.1</td>") == 2
    assert "more tensors differ" not in shown
    assert found.divergence().to_plotly_json()["data"][1]["z"]
    assert found.along_the_program().to_plotly_json()["data"][0]["y"]
    assert "is wrong in 3.json" in found.report(tmp_path / "x.html").read_text("utf-8")


def test_runs_that_agree_display_that() -> None:
    run = held_by_one(values())
    found = commtrace.compare(run, run)
    assert found.agrees
    assert repr(found).splitlines()[0] == "the runs agree in 24 tensors"
    assert "<b>the runs agree in 24 tensors</b>" in found._repr_html_()
    assert "<table>" not in found._repr_html_()


def test_a_long_list_of_wrong_tensors_is_cut() -> None:
    found = commtrace.compare(
        held_by_one(values(num_steps=20)), held_by_one(values(num_steps=20, factor=2.0))
    )
    assert found._repr_html_().count("<td>backward</td>") == 8
    assert "10 more tensors differ" in found._repr_html_()


def test_names_of_a_run_are_shown_and_not_interpreted() -> None:
    found = commtrace.compare(
        *(held_by_one(values(factor=factor, prefix=f"{HOSTILE}.")) for factor in (1.0, 2.0))
    )
    for shown in (found._repr_html_(), repr(found)):
        assert "\u202e" not in shown
        assert "\\u202e" in shown
    assert "<script>" not in found._repr_html_()


def test_a_run_without_values_is_an_error() -> None:
    with pytest.raises(UsageError, match="no values"):
        commtrace.compare(run_of([]), run_of([]))


def test_a_recording_is_compared_as_it_is() -> None:
    torch = pytest.importorskip("torch")

    def recorded(factor: float) -> commtrace.Recording:
        with commtrace.record(values="op") as recording:
            recording.observe("x", torch.ones(4) * factor)
        return recording

    assert commtrace.compare(recorded(1.0), recorded(1.0)).agrees
    found = commtrace.compare(recorded(1.0), recorded(2.0))
    assert found.fault is not None
    assert found.fault.relation.factor == pytest.approx(2.0)


def test_launch_refuses_an_unknown_level() -> None:
    with pytest.raises(UsageError, match="cannot record the values 'all'"):
        commtrace.launch(print, nproc=1, values="all")
