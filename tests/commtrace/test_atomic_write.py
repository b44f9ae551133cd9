"""A file is written completely or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from commtrace.atomic_write import atomic_write, finished, output_folder
from commtrace.errors import OutputError


def test_what_is_there_stays_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with atomic_write(path) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
        assert (unfinished.parent, unfinished.suffix) == (tmp_path, ".html")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_files_still_being_written_are_not_among_the_finished(tmp_path: Path) -> None:
    done = tmp_path / "1.note"
    done.write_text("{}")
    with atomic_write(tmp_path / "2.note"):
        assert len(list(tmp_path.glob("*.note"))) == 2
        assert finished(tmp_path, "*.note") == [done]


def test_nothing_is_left_of_what_was_not_written_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def write() -> None:
        with atomic_write(path) as unfinished:
            unfinished.write_text("aft")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (errno.ENOSPC, "no space left on the device"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EROFS, "a read-only file system"),
        (errno.EIO, "input/output error"),
    ],
)
def test_what_the_system_says_while_writing_has_four_parts(
    tmp_path: Path, code: int, found: str
) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(OutputError) as refused, atomic_write(path):
        raise OSError(code, os.strerror(code))
    assert isinstance(refused.value, OSError)
    assert refused.value.exit_code == 2
    assert (refused.value.summary, refused.value.found) == (f"cannot write {path}", found)
    assert refused.value.attempt
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_grows_past_a_limit_is_not_left_behind(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from commtrace.atomic_write import atomic_write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with atomic_write(Path(sys.argv[1])) as unfinished: unfinished.write_bytes(bytes(5000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "OutputError: cannot write" in done.stderr
    assert "found: a limit on file sizes" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: path.mkdir(), "an existing folder"),
        (os.mkfifo, "something that is neither a file nor a folder"),
    ],
)
def test_a_folder_or_a_pipe_is_never_replaced(tmp_path: Path, make: Any, found: str) -> None:
    path = tmp_path / "out"
    make(path)
    kind = path.stat().st_mode
    with pytest.raises(OutputError) as refused, atomic_write(path):
        pass
    assert refused.value.found == found
    assert path.stat().st_mode == kind


def test_a_device_is_never_replaced() -> None:
    with (
        pytest.raises(OutputError, match="neither a file nor a folder"),
        atomic_write(Path(os.devnull)),
    ):
        pass
    assert Path(os.devnull).is_char_device()


def test_a_folder_that_is_missing_or_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as missing, atomic_write(tmp_path / "no" / "x.json"):
        pass
    assert missing.value.found == f"no folder {tmp_path}/no"
    assert missing.value.attempt == f"`mkdir -p {tmp_path}/no`, or another path"
    (tmp_path / "file").touch()
    with pytest.raises(OutputError) as wrong, atomic_write(tmp_path / "file" / "x.json"):
        pass
    assert wrong.value.found == f"a file instead of the folder {tmp_path}/file"


def test_a_folder_without_write_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(OutputError) as refused, atomic_write(tmp_path / "x.json"):
        pass
    assert refused.value.found == f"no permission to write to {tmp_path}"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "run.json")
    for text in ("one", "two"):
        with atomic_write(link) as unfinished:
            unfinished.write_text(text)
        assert link.is_symlink()
        assert (tmp_path / "real" / "run.json").read_text() == text


@pytest.mark.parametrize("was_there", [False, True])
def test_a_new_folder_goes_again_if_its_files_can_not_be_written(
    tmp_path: Path, was_there: bool
) -> None:
    folder = tmp_path / "tables"
    if was_there:
        folder.mkdir()
        (folder / "own.txt").write_text("kept")

    def interrupted() -> None:
        with output_folder(folder):
            (folder / "comm.csv").write_text("rank")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert folder.exists() == was_there
    assert not was_there or (folder / "own.txt").read_text() == "kept"
    with output_folder(folder):
        (folder / "comm.csv").write_text("rank")
    assert (folder / "comm.csv").is_file()


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    meeting = Barrier(2)

    def write(content: str) -> None:
        with atomic_write(tmp_path / "x") as unfinished:
            meeting.wait(30)
            unfinished.write_text(content)
            meeting.wait(30)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(write, content) for content in ("one", "other")]:
            future.result(timeout=60)
    assert (tmp_path / "x").read_text() in ("one", "other")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
