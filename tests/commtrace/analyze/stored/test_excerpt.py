"""Excerpts and stretches of a stored run: the same as of the run in memory."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.excerpts import excerpt as excerpt_module
from commtrace.analyze.excerpts.excerpt import completed, excerpt, touching
from commtrace.analyze.excerpts.time_window import of_steps, within
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.run.matching import numbers, partners
from commtrace.analyze.stored import StoredRun
from commtrace.errors import UsageError
from commtrace.schema import TABLES
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, parquet_format, prepare_dataset
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES


@pytest.fixture(scope="module", params=["training", "crossed", "device0"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "RUN.comm"
    folder.mkdir()
    write_trace((TRACES | FAULTY)[request.param], folder / "run.json")
    prepare_dataset(folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Frames:
    return frames_of(open_dataset(folder).trace())


@pytest.fixture(scope="module")
def stored(folder: Path, whole: Frames) -> StoredRun:
    return StoredRun(open_dataset(folder), rows_of_part=max(5, len(whole.comm) // 3))


def the_middle(whole: Frames) -> tuple[int, int]:
    """A window of a third of the calls."""
    issued = whole.comm["issue_ns"].where(whole.comm["issue_ns"] >= 0) - whole.start_ns
    return int(issued.quantile(0.3)), int(issued.quantile(0.6)) + 1


def assert_equal_runs(found: Frames, expected: Frames) -> None:
    assert found.run == expected.run
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name), obj=name)


def test_a_window_is_that_of_the_run_in_memory(stored: StoredRun, whole: Frames) -> None:
    window = the_middle(whole)
    expected = within(whole, window)
    assert 0 < len(expected.comm) < len(whole.comm)
    assert_equal_runs(within(stored, window), expected)
    assert "_whole" not in vars(stored), "a table of all ranks was read"


def test_steps_are_those_of_the_run_in_memory(stored: StoredRun, whole: Frames) -> None:
    if not len(whole.timed_steps):
        with pytest.raises(UsageError, match="no step from 0 to 0"):
            of_steps(stored, 0, 0)
        return
    step = int(whole.timed_steps["step"].iloc[0])
    assert_equal_runs(of_steps(stored, step, step), of_steps(whole, step, step))
    assert "_whole" not in vars(stored), "a table of all ranks was read"


def test_values_of_an_excerpt_are_those_of_the_run(stored: StoredRun, whole: Frames) -> None:
    window = the_middle(whole)
    rows = completed(stored, touching, (window,))
    assert rows.equals(completed(whole, touching, (window,)))
    one = whole.ranks["rank"].iloc[0]
    for run in (stored, whole):
        of_one = excerpt(run, rows, ranks=[one], stretches=[window])
        assert set(of_one.comm["rank"]) == {one}
        labels = of_one.comm.index
        pd.testing.assert_frame_equal(arrivals(of_one), arrivals(whole).loc[labels])
        for value in (numbers, partners):
            pd.testing.assert_series_equal(
                value(of_one), value(whole).loc[labels], check_names=False
            )
        assert of_one.start_ns == whole.start_ns


def test_too_large_a_stretch_of_a_stored_run_is_refused(
    stored: StoredRun, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excerpt_module, "MOST_ROWS", 10)
    window = (0, int(whole.comm["issue_ns"].max() - whole.start_ns) + 1)
    with pytest.raises(UsageError) as refused:
        within(stored, window)
    text = str(refused.value)
    for part in ("cannot read", "calls, operators and kernels", "up to 10 rows", "--steps"):
        assert part in text
    assert len(within(whole, window).comm) == len(whole.comm), "a run in memory is of any size"


def test_of_a_stretch_only_the_row_groups_that_touch_it_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_format, "ROWS_IN_GROUP", 16)
    folder = tmp_path / "RUN.comm"
    folder.mkdir()
    write_trace(TRACES["training"], folder / "run.json")
    prepare_dataset(folder, workers=1)
    whole = frames_of(open_dataset(folder).trace())
    stored = StoredRun(open_dataset(folder), rows_of_part=len(whole.comm) // 3)
    assert stored.start_ns == whole.start_ns
    window = the_middle(whole)
    expected = within(whole, window)
    for part in stored.parts_by_ranks():
        own = set(part.comm["rank"])
        narrowed = part.narrowed(stretches=[window])
        assert 0 < len(narrowed.comm) < len(part.comm)
        touched = touching(whole, (window,)) & whole.comm["rank"].isin(own)
        assert set(narrowed.comm.index) >= set(whole.comm.index[touched])
        columns = ["rank", "id", "issue_ns"]
        pd.testing.assert_frame_equal(
            narrowed.comm[columns], whole.comm.loc[narrowed.comm.index, columns]
        )
        rows = part.comm.index[[0, 1]]
        assert len(part.narrowed(rows=rows, stretches=()).comm) == 16
        assert len(part.narrowed(rows=rows, stretches=()).ops) == 0
        assert set(part.narrowed(ranks=[min(own)]).comm["rank"]) == {min(own)}
    assert_equal_runs(within(stored, window), expected)
