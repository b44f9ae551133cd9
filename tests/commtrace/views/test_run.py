"""A run displays itself, and everything in it is available as a method."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.io
import pytest

import commtrace
from commtrace.analyze import CATALOG, Frames
from commtrace.analyze import load as load_frames
from commtrace.analyze.comparisons.diff import diff
from commtrace.errors import NotATraceError, UsageError
from commtrace.figures import PICTURES
from commtrace.figures.theme import DARK, LIGHT
from commtrace.schema import TABLES
from commtrace.tracefile import write_trace
from commtrace.views.run import Run, load
from tests.commtrace.analyze.rows import call, run_of, trace_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.reading import data

pytestmark = pytest.mark.usefixtures("preloaded")

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=hacked()>'\"&amp;"


@pytest.fixture(scope="module")
def run() -> Run:
    return load(training_trace())


def text_of(html: str) -> str:
    without = re.sub(r"<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return " ".join(without.split())


def test_a_run_is_what_analyses_take(run: Run, tmp_path: Path) -> None:
    frames = load_frames(training_trace())
    assert isinstance(run, Frames)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(run, name), getattr(frames, name))
    for analysis in CATALOG.values():
        pd.testing.assert_frame_equal(analysis.function(run), analysis.function(frames))
    path = write_trace(training_trace(), tmp_path / "run.json")
    again = commtrace.load(path)
    assert (type(again), again.path, load(again) is again) == (Run, path, True)
    assert commtrace.load(frames).comm is frames.comm


def test_a_table_is_that_of_the_catalog_or_of_the_trace(run: Run) -> None:
    for name, analysis in CATALOG.items():
        pd.testing.assert_frame_equal(
            run.table(name), analysis.function(run), check_frame_type=False
        )
    pd.testing.assert_frame_equal(run.table("comm"), run.comm, check_frame_type=False)
    pd.testing.assert_frame_equal(run.table("latecomers"), run.table("stragglers"))
    with pytest.raises(UsageError, match=r"no table 'by_modul'\n.*by_kind.*\n  try: by_module$"):
        run.table("by_modul")


def test_a_table_shows_units_and_holds_numbers() -> None:
    rows = [call(id=0, payload_bytes=1_500_000, at=2_000_000, until=4_500_000), call(id=1)]
    table = load(run_of(rows)).table("comm")
    chosen = table[["kind", "payload_bytes", "issue_ns", "step"]]
    assert chosen.shown().values.tolist() == [
        ["all_reduce", "1.5 MB", "2 ms", "-1"],
        ["all_reduce", "–", "–", "-1"],
    ]
    assert "1.5 MB" in chosen._repr_html_()
    assert "1.5 MB" in repr(chosen)
    assert chosen["payload_bytes"].tolist() == [1_500_000, -1]
    assert (chosen.head(1).shown()["issue_ns"] == "2 ms").all()
    assert chosen.rename(columns={"kind": "what"}).shown()["what"].tolist() == ["all_reduce"] * 2


def test_of_a_long_table_both_ends_are_shown() -> None:
    table = load(run_of([call(id=number) for number in range(200)])).table("comm")[["id", "kind"]]
    with pd.option_context("display.max_rows", 10):
        lines = repr(table).splitlines()
    assert [line.split()[0] for line in lines[1:11]] == [*map(str, [*range(5), *range(195, 200)])]


def test_each_picture_is_a_method_or_asked_for_by_name(run: Run) -> None:
    for name, picture in PICTURES.items():
        assert run.picture(name) == picture.draw(run)
    assert run.flame(value="num_calls") == PICTURES["flame"].draw(run, value="num_calls")
    for name in (
        "timeline",
        "matrix",
        "sizes",
        "bandwidth",
        "waits",
        "gpu_time",
        "splits",
        "expert_load",
    ):
        assert getattr(run, name)() == run.picture(name)
    with pytest.raises(UsageError, match="no picture 'flam'"):
        run.picture("flam")


def test_bandwidth_is_compared_with_the_link_that_is_given(run: Run, tmp_path: Path) -> None:
    def references(figure: Any) -> list[str]:
        return [each["name"] for each in figure["data"] if each["meta"]["part"] == "reference"]

    assert references(run.bandwidth(link="50 GB/s").to_dict()) == ["link 50 GB/s"]
    path = run.report(tmp_path / "page.html", link={"*": "400 Gbit/s"})
    page = data(path.read_text(encoding="utf-8"))
    assert references(page["patterns"]["bandwidth"]) == ["link 50 GB/s"]
    (table,) = (each for each in page["tables"] if each["name"] == "bandwidth")
    assert table["data"]["reference_is"]["strings"] == ["link"]
    with pytest.raises(UsageError, match="cannot use the speed of a link"):
        run.bandwidth(link="fast")
    with pytest.raises(UsageError, match="cannot use the speed of a link"):
        run.report(tmp_path / "other.html", link="fast")


def test_pictures_are_dark_where_plotlys_template_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.flame().layout.paper_bgcolor == LIGHT.surface
    monkeypatch.setattr(plotly.io.templates, "default", "plotly_dark")
    assert run.flame().layout.paper_bgcolor == DARK.surface
    assert run.flame(theme="light").layout.paper_bgcolor == LIGHT.surface


def test_a_run_shows_what_it_is(run: Run) -> None:
    by_kind = CATALOG["by_kind"].function(run)
    for shown in (text_of(run._repr_html_() or ""), repr(run)):
        assert f"{len(run.comm):,} calls of 4 ranks" in shown
        assert list(by_kind["kind"]) == [
            kind for kind in shown.split() if kind in set(by_kind["kind"])
        ]
        assert ".flame()" in shown


def test_findings_show_sentences_and_rules_not_evaluated(run: Run) -> None:
    findings = run.findings()
    pd.testing.assert_frame_equal(
        findings, CATALOG["findings"].function(run), check_frame_type=False
    )
    assert len(findings)
    for shown in (text_of(findings._repr_html_()), " ".join(repr(findings).split())):
        for text in (*findings["title"], *findings["advice"]):
            assert " ".join(text.split()) in shown.replace("&#39;", "'").replace("&#34;", '"')
    assert "Not evaluated: " in repr(load(run_of([call()])).findings())


def test_a_call_is_explained(run: Run) -> None:
    explained = run.explain("longest")
    assert explained.story.time.blocked_ns == run.comm["blocked_ns"].max()
    for shown in (text_of(explained._repr_html_()), repr(explained)):
        assert explained.story.kind in shown
        assert f"{explained.story.rank}:{explained.story.id} all_reduce on tp, step 1" in shown


def test_a_run_is_checked(run: Run) -> None:
    checked = run.check()
    assert not checked.has_fault
    for shown in (text_of(checked._repr_html_()), repr(checked)):
        assert "no fault in" in shown
        assert "compared: " in shown
    assert checked.gradients is None
    assert "gradients: " in repr(run.check(gradients=True))


def test_a_fault_is_shown_with_its_evidence() -> None:
    rows = [call(rank=rank, seq=0, dtype=f"float{16 << rank}") for rank in range(2)]
    checked = load(run_of(rows, num_ranks=2)).check()
    assert checked.has_fault
    assert list(checked.problems["problem"]) == ["dtype"]
    for shown in (text_of(checked._repr_html_()), repr(checked)):
        assert "1 fault in 2 calls of 2 ranks" in shown
        assert "rank 0: float16; rank 1: float32" in shown


def test_two_runs_are_compared(run: Run, tmp_path: Path) -> None:
    trace = trace_of([call(payload_bytes=5)])
    path, other = write_trace(trace, tmp_path / "other.json"), load(trace)
    pd.testing.assert_frame_equal(run.diff(other), diff(run, other), check_frame_type=False)
    for place in (path, str(path)):
        pd.testing.assert_frame_equal(run.diff(place), run.diff(other))
    with pytest.raises(NotATraceError, match="no such file"):
        run.diff("nowhere.json")


def test_the_page_is_written(run: Run, tmp_path: Path) -> None:
    path = run.report(tmp_path / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    part = run.report(tmp_path / "part.html", steps=(0, 0)).read_text(encoding="utf-8")
    assert "This page shows a part of the run" in part
    with pytest.raises(UsageError):
        run.report(tmp_path / "none.html", window_ns=(10**15, 10**16))


def test_names_of_the_trace_are_escaped_wherever_they_are_shown() -> None:
    names: Any = {
        name: HOSTILE
        for name in ("kind", "op", "module", "module_class", "phase", "source_file", "reason")
    }
    names |= {"source_spec": HOSTILE, "target_spec": HOSTILE, "argument": HOSTILE}
    rows = [call(id=i, rank=r, payload_bytes=8, **names) for i in range(3) for r in range(2)]
    run = load(run_of(rows, run={"command": HOSTILE, "world_size": 2}))
    shown = [
        run._repr_html_() or "",
        run.findings()._repr_html_(),
        run.explain("0:1")._repr_html_(),
        run.check()._repr_html_(),
        run.table("by_module")._repr_html_(),
        run.table("comm")[["module", "kind"]]._repr_html_(),
    ]
    for html in shown:
        assert "<script" not in html
        assert "<img" not in html
    assert "&lt;script&gt;" in shown[0]
    assert "&lt;script&gt;" in shown[2]


def test_what_is_shown_holds_no_script_and_loads_nothing(run: Run) -> None:
    for html in (
        run._repr_html_() or "",
        run.findings()._repr_html_(),
        run.explain("longest")._repr_html_(),
        run.check()._repr_html_(),
    ):
        assert not re.search(r"<script|https?:|url\(|@import|on[a-z]+=", html)


def test_a_recording_has_the_same_methods() -> None:
    recording = commtrace.record()
    assert recording._repr_html_() is None
    with recording:
        pass
    assert len(recording.table()) == 0
    assert recording.table("by_kind").empty
    assert recording.findings().empty
    assert "No communication was recorded" in (recording._repr_html_() or "")
    assert not recording.timeline().data
