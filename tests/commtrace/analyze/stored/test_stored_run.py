"""Runs read from a dataset in parts: their tables, and what is kept of them on the way."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Frames, load, notices_of
from commtrace.analyze.arrivals import last_arrivals
from commtrace.analyze.cached_per_run import OF_COLLECTIVES, OF_RANKS
from commtrace.analyze.frame import frames_of
from commtrace.analyze.stored import StoredRun
from commtrace.analyze.stored.row_store import RowStore
from commtrace.analyze.story.peers import matched_calls
from commtrace.analyze.time_window import within
from commtrace.errors import TraceError
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES


@pytest.fixture(scope="module", params=["training", "crossed", "layouts0"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "RUN.comm"
    folder.mkdir()
    write_trace((TRACES | FAULTY)[request.param], folder / "run.json")
    prepare_dataset(folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Frames:
    return frames_of(open_dataset(folder).trace())


def stored(folder: Path, whole: Frames) -> StoredRun:
    return StoredRun(open_dataset(folder), rows_of_part=max(5, len(whole.comm) // 3))


def test_every_table_is_that_of_the_run_in_memory(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole)
    assert len(list(run.parts(OF_RANKS))) > 1
    tables = run.together(partial(analysis.function, run) for analysis in CATALOG.values())
    for table, (name, analysis) in zip(tables, CATALOG.items(), strict=True):
        pd.testing.assert_frame_equal(table, analysis.function(whole), rtol=1e-12, obj=name)
    assert notices_of(run) == notices_of(whole)
    assert "_whole" not in run.__dict__, "an analysis has read a table of all ranks"


def test_each_call_is_in_one_part_of_each_sort(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole)
    for sort in (OF_RANKS, OF_COLLECTIVES):
        parts = [part.comm for part in run.parts(sort)]
        assert sorted(np.concatenate([part.index for part in parts])) == [*whole.comm.index]
        for part in parts:
            names = ["rank", "id", "group", "kind", "issue_ns"]
            expected = whole.comm.loc[part.index, names].astype(object)
            assert part[names].astype(object).equals(expected)


def test_collectives_are_whole_in_their_part(folder: Path, whole: Frames) -> None:
    place: dict[tuple[str, int], int] = {}
    for number, part in enumerate(stored(folder, whole).parts(OF_COLLECTIVES)):
        calls = part.comm[~part.comm["kind"].isin(["send", "recv"])]
        for key in zip(calls["group"], calls["seq"], strict=True):
            mixed = whole.comm.loc[whole.comm["group"] == key[0], "kind"].isin(["send", "recv"])
            assert mixed.any() or place.setdefault(key, number) == number


def test_tables_of_all_ranks_are_read_when_they_are_asked_for(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole)
    pd.testing.assert_frame_equal(run.comm, whole.comm)
    assert run.num_calls == len(whole.comm)
    assert run.start_ns == whole.start_ns


def test_a_row_for_each_call_of_the_run_is_that_in_memory(folder: Path, whole: Frames) -> None:
    pd.testing.assert_frame_equal(last_arrivals(stored(folder, whole)), last_arrivals(whole))


def test_what_is_computed_on_the_way_goes_with_the_run(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole)
    last_arrivals(run)
    kept = run.__dict__["_folder"]
    assert kept.is_dir()
    del run
    gc.collect()
    assert not kept.exists()


def rows_of(*stretches: int) -> np.ndarray:
    return np.append(0, np.cumsum(stretches))


def test_rows_are_read_as_they_were_written_in_any_order(tmp_path: Path) -> None:
    store = RowStore(tmp_path, rows_of(3, 0, 4))
    table = pd.DataFrame({"a": np.arange(7), "b": np.linspace(0, 1, 7)})
    parts = [table.loc[[6, 0, 2]], table.loc[[5, 1]], table.loc[[3, 4]]]
    assert not store.has("t")
    store.write("t", parts)
    assert store.has("t")
    pd.testing.assert_frame_equal(store.read("t", pd.RangeIndex(7)), table)
    pd.testing.assert_frame_equal(store.read("t", pd.Index([4, 2])), table.loc[[4, 2]])
    store.write("s", [table["a"] > 2])
    assert store.read("s", pd.Index([2, 3])).tolist() == [False, True]


def test_rows_of_which_some_parts_are_missing_are_not_there(tmp_path: Path) -> None:
    store = RowStore(tmp_path, rows_of(2))

    def parts() -> object:
        yield pd.Series([1], index=[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write("t", parts())
    assert not store.has("t")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_rows_that_is_damaged_is_named(tmp_path: Path) -> None:
    store = RowStore(tmp_path, rows_of(2))
    store.write("t", [pd.Series([1, 2])])
    (path,) = (tmp_path / "t").glob("*.npy")
    np.save(path, np.arange(9))
    with pytest.raises(TraceError, match=r"0\.00000\.npy"):
        store.read("t", pd.RangeIndex(2))


def test_a_large_run_is_opened_in_parts(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(load(folder)) is Frames
    monkeypatch.setattr("commtrace.analyze.opening.ROWS_IN_MEMORY", len(whole.comm) - 1)
    run = load(folder)
    assert isinstance(run, StoredRun)
    by_kind = CATALOG["by_kind"].function
    pd.testing.assert_frame_equal(by_kind(run), by_kind(whole))


def test_other_settings_leave_the_run_in_parts(folder: Path, whole: Frames) -> None:
    run = stored(folder, whole).with_link("400 Gbit/s")
    assert isinstance(run, StoredRun)
    assert run.settings.link
    assert len(list(run.parts(OF_RANKS))) > 1


def test_a_stretch_and_a_single_call_are_those_of_the_run_in_memory(
    folder: Path, whole: Frames
) -> None:
    run = stored(folder, whole)
    window = (0, int(whole.comm["issue_ns"].max() - whole.start_ns))
    pd.testing.assert_frame_equal(within(run, window).comm, within(whole, window).comm)
    call = whole.comm.iloc[-1]
    assert matched_calls(run, call) == matched_calls(whole, call)
