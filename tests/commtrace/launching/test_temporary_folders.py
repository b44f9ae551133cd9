"""Temporary folders of a killed process stay until the next process; recordings are kept."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import commtrace
from commtrace.launching.temporary_folders import remove_abandoned, scratch_folder

pytestmark = pytest.mark.usefixtures("preloaded")

ROOT = Path(__file__).parents[3]

KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from commtrace.launching.temporary_folders import scratch_folder
with scratch_folder() as folder:
    (folder / "parcel").write_bytes(b"what is sent")
    for name in sys.argv[1:]:
        (folder / name).write_bytes(b"what was recorded")
    print(folder, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, also for child processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start(*names: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(root=str(ROOT)), *names],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(*names: str) -> Path:
    process, folder = start(*names)
    process.communicate(timeout=60)
    assert process.returncode < 0
    assert (folder / "parcel").exists()
    return folder


def test_a_folder_is_its_owners_alone_and_goes_with_it() -> None:
    with scratch_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        remove_abandoned()
        assert folder.is_dir()
    assert not folder.exists()


def test_what_a_killed_process_has_left_is_removed() -> None:
    folder = killed()
    remove_abandoned()
    assert not folder.exists()


def test_the_folder_of_another_process_at_work_stays() -> None:
    process, folder = start()
    remove_abandoned()
    assert (folder / "parcel").exists()
    process.communicate(timeout=60)


def test_spools_stay_and_their_place_is_reported_once() -> None:
    folder = killed("rank-00000.spool")
    assert remove_abandoned() == [
        f"a killed process left a recording in {folder}: "
        f"`commtrace merge {folder} -o run.json` merges it"
    ]
    assert [path.name for path in folder.iterdir()] == ["rank-00000.spool"]
    assert remove_abandoned() == []
    assert (folder / "rank-00000.spool").read_bytes() == b"what was recorded"


def test_a_run_of_the_command_removes_what_a_killed_one_has_left(temporary: Path) -> None:
    abandoned, recorded = killed(), killed("rank-00000.spool")
    (temporary / "train.py").write_text("")
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-m", "commtrace_cli", "run", "--nproc", "1", "train.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=temporary, text=True, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert not abandoned.exists()
    assert (
        f"note: a killed process left a recording in {recorded}: `commtrace merge" in ended.stderr
    )


def nothing() -> None:
    """The program of a rank."""


def test_a_launch_removes_what_a_killed_one_has_left() -> None:
    abandoned, recorded = killed(), killed("rank-00000.spool")
    with pytest.warns(UserWarning, match=rf"left a recording in {re.escape(str(recorded))}: "):
        commtrace.launch(nothing, 1)
    assert not abandoned.exists()
    assert (recorded / "rank-00000.spool").exists()


def test_folders_of_others_are_left_alone(temporary: Path) -> None:
    """Cases: no mark, a mark that is a link, a link instead of the folder."""
    gone = killed()
    (temporary / "commtrace-unmarked").mkdir()
    with_link = temporary / "commtrace-linked"
    with_link.mkdir()
    (with_link / "owner").symlink_to(gone / "owner")
    elsewhere = temporary / "elsewhere"
    gone.rename(elsewhere)
    (temporary / "commtrace-link").symlink_to(elsewhere)
    before = sorted(path for path in temporary.rglob("*"))
    remove_abandoned()
    assert sorted(path for path in temporary.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_is_left_alone() -> None:
    folder = killed()
    os.chown(folder, 12345, 12345)
    remove_abandoned()
    assert (folder / "parcel").exists()
