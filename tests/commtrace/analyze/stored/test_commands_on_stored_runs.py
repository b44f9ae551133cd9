"""Pictures, single calls, comparisons and exports of a stored run equal the run's in memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.comparisons.diff import compare_all, differences_of_runs
from commtrace.analyze.comparisons.growth import by_kind, by_line, by_module
from commtrace.analyze.excerpts import excerpt as excerpt_module
from commtrace.analyze.excerpts.excerpt import of_ranks
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.stored import StoredRun
from commtrace.analyze.story import explain, find_call
from commtrace.errors import UsageError
from commtrace.exporters import FORMATS
from commtrace.figures import PICTURES
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from commtrace_cli.text_timeline import timeline_lines
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES
from tests.commtrace.report.test_page_of_stored_run import rounded


@pytest.fixture(scope="module", params=["training", "crossed", "device0", "piped0", "not received"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredRun, Frames]:
    folder = tmp_path_factory.mktemp("stored") / "RUN.comm"
    folder.mkdir()
    write_trace((TRACES | FAULTY)[request.param], folder / "run.json")
    prepare_dataset(folder, workers=1)
    dataset = open_dataset(folder)
    whole = frames_of(dataset.trace())
    return StoredRun(dataset, rows_of_part=max(5, len(whole.comm) // 3)), whole


@pytest.fixture(autouse=True)
def reads_parts_only(runs: tuple[StoredRun, Frames]) -> Any:
    """No test may read a table of all ranks."""
    yield
    assert "_whole" not in vars(runs[0]), "a table of all ranks was read"


def the_middle(whole: Frames) -> tuple[int, int]:
    issued = whole.comm["issue_ns"].where(whole.comm["issue_ns"] >= 0) - whole.start_ns
    return int(issued.quantile(0.3)), int(issued.quantile(0.6)) + 1


@pytest.mark.parametrize("max_marks", [16_000, 60])
def test_the_timeline_is_that_of_the_run_in_memory(
    runs: tuple[StoredRun, Frames], max_marks: int
) -> None:
    ranks = sorted(runs[1].ranks["rank"])[:2]
    for options in ({}, {"window_ns": the_middle(runs[1])}, {"ranks": ranks}):
        found, expected = (
            PICTURES["timeline"].draw(run, max_marks=max_marks, **options).to_plotly_json()
            for run in runs
        )
        assert rounded(found) == rounded(expected)


def test_the_timeline_of_the_terminal_is_that_of_the_run_in_memory(
    runs: tuple[StoredRun, Frames],
) -> None:
    ranks = sorted(runs[1].ranks["rank"])
    found, expected = (timeline_lines(run, the_middle(runs[1]), ranks, 100) for run in runs)
    assert found == expected


def test_the_flame_graph_is_that_of_the_run_in_memory(runs: tuple[StoredRun, Frames]) -> None:
    found, expected = (PICTURES["flame"].draw(run).to_plotly_json() for run in runs)
    assert rounded(found) == rounded(expected)


def test_each_call_is_explained_as_in_memory(runs: tuple[StoredRun, Frames]) -> None:
    stored, whole = runs
    comm = whole.comm
    some = comm.iloc[[0, len(comm) // 2, len(comm) - 1]]
    names = [f"{rank}:{number}" for rank, number in zip(some["rank"], some["id"], strict=True)]
    for name in ("longest", "biggest", str(comm["id"].iloc[-1]), *names):
        call, found = find_call(whole, name), find_call(stored, name)
        assert found.name == call.name
        # By their texts, since an unknown number differs from itself.
        assert repr(explain(stored, found)) == repr(explain(whole, call))


def test_a_call_that_is_not_there_is_refused_as_in_memory(runs: tuple[StoredRun, Frames]) -> None:
    for name in ("0:999999", "99:0", "nonsense"):
        texts = set()
        for run in runs:
            with pytest.raises(UsageError) as refused:
                find_call(run, name)
            texts.add(str(refused.value))
        assert len(texts) == 1


def test_differences_are_those_of_runs_in_memory(runs: tuple[StoredRun, Frames]) -> None:
    stored, whole = runs
    for pair in ((stored, whole), (whole, stored), (stored, stored)):
        (found,), (expected,) = compare_all(pair), compare_all((whole, whole))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-9, atol=1e-9)
        assert differences_of_runs(*pair) == differences_of_runs(whole, whole)
        for growth in (by_kind, by_line, by_module):
            found, expected = (
                sorted((each.name, each.scope) for each in growth(some))
                for some in (pair, (whole, whole))
            )
            assert found == expected


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_is_that_of_the_run_in_memory(
    runs: tuple[StoredRun, Frames], name: str, tmp_path: Path
) -> None:
    paths = [tmp_path / "stored.json.gz", tmp_path / "memory.json.gz"]
    for run, path in zip(runs, paths, strict=True):
        FORMATS[name].write(run, path)
    found, expected = map(contents, paths)
    assert found == expected


def contents(path: Path) -> Any:
    """Events, profiles or rows of an export."""
    if path.is_dir() and any(each.suffix == ".parquet" for each in path.iterdir()):
        return {
            each.name: pd.read_parquet(each).astype(object).fillna("none").to_dict("list")
            for each in sorted(path.iterdir())
        }
    if path.is_dir():
        return {each.name: each.read_bytes() for each in sorted(path.iterdir())}
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)


def test_an_export_of_some_ranks_has_their_waits(
    runs: tuple[StoredRun, Frames], tmp_path: Path
) -> None:
    rank = int(runs[1].comm["rank"].iloc[-1])
    slices = []
    for number, run in enumerate(runs):
        path = tmp_path / f"{number}.json"
        FORMATS["perfetto"].write(of_ranks(run, [rank]), path)
        events = contents(path)["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        slices.append([event for event in events if event["ph"] == "X"])
    whole = tmp_path / "whole.json"
    FORMATS["perfetto"].write(runs[1], whole)
    of_rank = [
        event
        for event in contents(whole)["traceEvents"]
        if event["ph"] == "X" and event["pid"] == rank
    ]
    assert slices == [of_rank, of_rank]


def test_too_large_a_run_is_not_read_at_once(
    runs: tuple[StoredRun, Frames], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excerpt_module, "MOST_ROWS", 10)
    with pytest.raises(UsageError) as refused:
        FORMATS["perfetto"].write(runs[0], tmp_path / "run.json")
    text = str(refused.value)
    for part in ("cannot read all calls at once", "found:", "why:", "try:", "--ranks"):
        assert part in text
    assert not (tmp_path / "run.json").exists()
