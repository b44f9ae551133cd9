"""Analyses of a large run whose folder cannot be written, or is on a full disk."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.measures.arrivals import arrivals, last_arrivals
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.stored import StoredRun
from commtrace.atomic_write import atomic_write
from commtrace.errors import NotKeptError
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from commtrace.workers import Workers
from commtrace_cli.main import app
from tests.commtrace.analyze.test_second_computation import TRACES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared_in(tmp_path)


def prepared_in(place: Path) -> Path:
    folder = place / "RUN.comm"
    folder.mkdir()
    write_trace(TRACES["training"], folder / "run.json")
    prepare_dataset(folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return frames_of(open_dataset(prepared_in(tmp_path_factory.mktemp("whole"))).trace())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def fill(disk: Path, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Let no file below a folder be written, after some of them."""
    num = 0

    @contextmanager
    def full(path: Path) -> Iterator[Path]:
        nonlocal num
        with atomic_write(path) as unfinished:
            yield unfinished
            num += disk in path.parents
            if disk in path.parents and num > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("commtrace.analyze.stored.kept_files.atomic_write", full)


def stored(folder: Path, whole: Frames, workers: Workers | None = None) -> StoredRun:
    size = max(5, len(whole.comm) // 6)
    return StoredRun(open_dataset(folder), rows_of_part=size, workers=workers)


def assert_computed(run: StoredRun, whole: Frames) -> None:
    names = ("by_module", "by_rank", "stragglers", "consistency")
    tables = [CATALOG[name].function(run) for name in names]
    for name, table in zip(names, tables, strict=True):
        expected = CATALOG[name].function(whole)
        pd.testing.assert_frame_equal(table, expected, rtol=1e-12, obj=name)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("after", [0, 7])
def test_tables_are_computed_on_a_disk_that_is_or_becomes_full(
    after: int, folder: Path, whole: Frames, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    fill(folder, monkeypatch, after)
    run = stored(folder, whole)
    assert_computed(run, whole)
    assert contents(folder).items() >= before.items()
    assert list(temporary.iterdir())
    del run
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_what_was_kept_before_is_used_and_stays(
    folder: Path, whole: Frames, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = last_arrivals(stored(folder, whole))
    before = contents(folder)
    fill(folder, monkeypatch)
    run = stored(folder, whole)
    table = CATALOG["stragglers"].function(run)
    assert temporary in run.folder.parents
    pd.testing.assert_frame_equal(table, CATALOG["stragglers"].function(whole), rtol=1e-12)
    written = [path for path in run.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert written
    assert not [path for path in written if "meetings" in str(path)]
    pd.testing.assert_frame_equal(last_arrivals(run), expected)
    assert contents(folder) == before


def test_without_space_anywhere_the_error_says_what_to_try(
    folder: Path, whole: Frames, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    fill(folder.parent, monkeypatch)
    run = stored(folder, whole)
    for _ in range(2):
        with pytest.raises(NotKeptError) as error:
            arrivals(run)
        assert temporary in Path(error.value.place).parents
        assert str(error.value) == (
            "cannot keep what is prepared of the run\n"
            f"  at: {error.value.place}\n"
            "  found: no space left on the device\n"
            "  why: analyses of a large run keep values of calls in files: in the folder of the "
            "run, or else in that for temporary files\n"
            "  try: free some space in one of them, or `export TMPDIR=FOLDER` where there is some"
        )
    assert contents(folder) == before
    monkeypatch.setattr("commtrace.analyze.stored.kept_files.atomic_write", atomic_write)
    pd.testing.assert_frame_equal(arrivals(run), arrivals(whole))


def test_without_a_folder_for_temporary_files_the_error_says_so(
    folder: Path, whole: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*args: object, **options: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    fill(folder, monkeypatch)
    monkeypatch.setattr("commtrace.analyze.stored.kept_files.mkdtemp", nowhere)
    with pytest.raises(NotKeptError, match="no usable temporary directory found"):
        arrivals(stored(folder, whole))


def test_a_disk_that_is_really_full_is_no_obstacle(
    disk_of: Callable[[str], Path], whole: Frames
) -> None:
    disk = disk_of("200k")
    folder = prepared_in(disk)
    with pytest.raises(OSError, match="No space"):
        (disk / "filling").write_bytes(b"\0" * 1_000_000)
    before = contents(folder)
    with Workers("analyse the run", 2) as workers:
        run = stored(folder, whole, workers)
        assert_computed(run, whole)
    assert contents(folder) == before


def test_commands_answer_on_a_full_disk(
    folder: Path, whole: Frames, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [
        ["table", str(folder), "stragglers"],
        ["check", str(folder)],
        ["report", str(folder), "-o", str(temporary / "page.html")],
    ]
    expected = [CliRunner().invoke(app, command) for command in commands]
    shutil.rmtree(temporary)
    temporary.mkdir()
    monkeypatch.setattr("commtrace.tracefile.opening.ROWS_IN_MEMORY", len(whole.comm) // 2)
    fill(folder, monkeypatch)
    for command, before in zip(commands, expected, strict=True):
        ended = CliRunner().invoke(app, command)
        assert (ended.exit_code, ended.stdout) == (before.exit_code, before.stdout), command
