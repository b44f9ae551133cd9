"""Runs read from a dataset in parts: their tables, and what they keep on the way."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Frames, load, notices_of
from commtrace.analyze.excerpts.excerpt import of_kinds
from commtrace.analyze.excerpts.time_window import within
from commtrace.analyze.measures.arrivals import last_arrivals
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.run.matching import AcrossRanks, matches
from commtrace.analyze.stored import StoredRun
from commtrace.analyze.story.peers import matched_calls
from commtrace.analyze.waits.skew import skew
from commtrace.errors import OutputError, TraceError
from commtrace.exporters import export
from commtrace.tracefile import spool_name, write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from commtrace.workers import Workers
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES
from tests.commtrace.synthetic import write_synthetic_spools

NOT_RECORDED = {f"random{seed}" for seed in range(4)}
"""Traces with values that no recording has, which a run file refuses."""

EVERY_KIND = [name for name in TRACES | FAULTY if name not in NOT_RECORDED]


@pytest.fixture(scope="module", params=["training", "crossed", "layouts0", "routed0"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(request.param, tmp_path_factory.mktemp("stored"))


def prepared(name: str, parent: Path) -> Path:
    folder = parent / "RUN.comm"
    folder.mkdir()
    write_trace((TRACES | FAULTY)[name], folder / "run.json")
    prepare_dataset(folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Frames:
    return frames_of(open_dataset(folder).trace())


def stored(folder: Path, whole: Frames) -> StoredRun:
    return StoredRun(open_dataset(folder), rows_of_part=max(5, len(whole.comm) // 3))


@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_table_is_that_of_the_run_in_memory_also_from_what_is_prepared(
    name: str, tmp_path: Path
) -> None:
    folder = prepared(name, tmp_path)
    whole = frames_of(open_dataset(folder).trace())
    expected = {name: analysis.function(whole) for name, analysis in CATALOG.items()}
    for _ in range(2):
        run = stored(folder, whole)
        assert len(list(run.parts_by_ranks())) > 1 or whole.comm["rank"].nunique() < 2
        tables = [analysis.function(run) for analysis in CATALOG.values()]
        for table, (name, of_whole) in zip(tables, expected.items(), strict=True):
            pd.testing.assert_frame_equal(table, of_whole, rtol=1e-12, obj=name)
        assert notices_of(run) == notices_of(whole)
        assert "_whole" not in run.__dict__, "an analysis has read a table of all ranks"


def test_each_call_is_in_one_part(folder: Path, whole: Frames) -> None:
    parts = [part.comm for part in stored(folder, whole).parts_by_ranks()]
    assert [*np.concatenate([part.index for part in parts])] == [*whole.comm.index]
    for part in parts:
        names = ["rank", "id", "group", "kind", "issue_ns"]
        expected = whole.comm.loc[part.index, names].astype(object)
        assert part[names].astype(object).equals(expected)


def test_tables_of_all_ranks_are_read_when_they_are_asked_for(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole)
    pd.testing.assert_frame_equal(run.comm, whole.comm)
    assert run.num_calls == len(whole.comm)
    assert run.start_ns == whole.start_ns


def test_a_row_for_each_call_of_the_run_is_that_in_memory(folder: Path, whole: Frames) -> None:
    pd.testing.assert_frame_equal(last_arrivals(stored(folder, whole)), last_arrivals(whole))


def test_what_is_prepared_is_found_by_the_next_command(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored(folder, whole)
    expected = last_arrivals(run)
    again = stored(folder, whole)
    assert kept_of(again)
    monkeypatch.setattr(AcrossRanks, "arrays", pytest.fail)
    pd.testing.assert_frame_equal(last_arrivals(again), expected)
    other = StoredRun(open_dataset(folder), rows_of_part=len(whole.comm))
    assert not kept_of(other), "labels of stragglers are those of this division"


def kept_of(run: StoredRun) -> list[Path]:
    return [path for path in run.folder.rglob("*") if path.is_file()]


def test_a_dataset_that_is_prepared_again_has_nothing_of_the_former_one(
    folder: Path, whole: Frames
) -> None:
    last_arrivals(stored(folder, whole))
    (folder / "run.json").touch()
    prepare_dataset(folder, workers=1)
    assert not kept_of(stored(folder, whole))


def test_without_a_writable_folder_what_is_prepared_goes_with_the_run(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OutputError(f"cannot write {path}")

    monkeypatch.setattr("commtrace.analyze.stored.stored_run.make_folder", refuse)
    run = stored(folder, whole)
    last_arrivals(run)
    kept = run.folder
    assert kept.is_dir()
    assert folder not in kept.parents
    del run
    gc.collect()
    assert not kept.exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems have UTF-8 names only")
def test_the_folder_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"RUN\xff.comm")
    folder.mkdir()
    write_trace(TRACES["training"], folder / "run.json")
    prepare_dataset(folder, workers=1)
    whole = frames_of(open_dataset(folder).trace())
    for _ in range(2):  # the second one reads what the first has prepared
        pd.testing.assert_frame_equal(skew(stored(folder, whole)), skew(whole), rtol=1e-12)
    exported = export(whole, tmp_path / os.fsdecode(b"out\xff"), to="parquet")
    assert (exported / "comm.parquet").stat().st_size


class InThisProcess:
    """Answers as other processes do, which open the dataset themselves."""

    def results(self, function: Any, shared: Any, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        yield from ((place, function(shared, job)) for place, job in enumerate(jobs))


def test_others_do_not_answer_from_a_dataset_that_was_prepared_again(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm", world_size=5)
    (folder / spool_name(4)).rename(tmp_path / "aside")
    prepare_dataset(folder, workers=1)
    run = StoredRun(open_dataset(folder), rows_of_part=1, workers=InThisProcess())
    (tmp_path / "aside").rename(folder / spool_name(4))
    prepare_dataset(folder, workers=1)
    with pytest.raises(TraceError, match="found: another dataset than at the beginning"):
        run.by_ranks(ranks_of)
    again = StoredRun(open_dataset(folder), rows_of_part=1, workers=InThisProcess())
    assert again.by_ranks(ranks_of) == [[0], [1], [2], [3], [4]]


def ranks_of(part: Frames) -> list[int]:
    return part.ranks["rank"].tolist()


@pytest.mark.parametrize("folder", ["crossed", "routed0"], indirect=True)
def test_other_processes_answer_as_this_one_does(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.analyze.stored.stored_run._PARTS_OF_WORKERS", 1)
    with Workers("analyse the run", 2) as workers:
        run = StoredRun(open_dataset(folder), rows_of_part=len(whole.comm) // 6, workers=workers)
        assert run.num_parts > 1
        tables = [analysis.function(run) for analysis in CATALOG.values()]
        assert notices_of(run) == notices_of(whole)
        assert workers._processes
    for table, (name, analysis) in zip(tables, CATALOG.items(), strict=True):
        pd.testing.assert_frame_equal(table, analysis.function(whole), rtol=1e-12, obj=name)


def test_a_large_run_is_opened_in_parts(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(load(folder)) is Frames
    monkeypatch.setattr("commtrace.tracefile.opening.ROWS_IN_MEMORY", len(whole.comm) - 1)
    run = load(folder)
    assert isinstance(run, StoredRun)
    by_kind = CATALOG["by_kind"].function
    pd.testing.assert_frame_equal(by_kind(run), by_kind(whole))


def test_other_settings_leave_the_run_in_parts(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole).with_link("400 Gbit/s")
    assert isinstance(run, StoredRun)
    assert run.settings.link
    assert len(list(run.parts_by_ranks())) > 1


def test_a_stretch_and_a_single_call_are_those_of_the_run_in_memory(
    folder: Path, whole: Frames
) -> None:
    run = stored(folder, whole)
    window = (0, int(whole.comm["issue_ns"].max() - whole.start_ns))
    pd.testing.assert_frame_equal(within(run, window).comm, within(whole, window).comm)
    call = whole.comm.iloc[-1]
    assert matched_calls(run, call) == matched_calls(whole, call)


@pytest.mark.parametrize("folder", ["crossed", "routed0"], indirect=True)
def test_calls_of_a_kind_are_compared_in_batches(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.analyze.excerpts.excerpt._ROWS_OF_BATCH", 3)
    monkeypatch.setattr("commtrace.analyze.excerpts.excerpt._MOST_BATCHES", 1000)
    monkeypatch.setattr("commtrace.analyze.excerpts.excerpt._MATCHES_OF_BIN", 1)
    run = stored(folder, whole)
    kinds = tuple(set(whole.comm["kind"]) - {"send", "recv"})
    batches = [calls.comm for calls in of_kinds(run, *kinds)]
    assert len(batches) > 1
    of_kind = whole.comm["kind"].isin(kinds) & (matches(whole) >= 0)
    assert sorted(np.concatenate([calls.index for calls in batches])) == [
        *whole.comm.index[of_kind]
    ]
    for calls in batches:
        match = matches(whole)[calls.index]
        assert matches(whole).isin(match).sum() == len(calls), "all members of each collective"
    for name in ("consistency", "findings", "expert_load"):
        expected = CATALOG[name].function(whole)
        pd.testing.assert_frame_equal(CATALOG[name].function(run), expected, rtol=1e-12, obj=name)
