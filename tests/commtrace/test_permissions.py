"""Files and folders are accessible to their owner only, unless their parent folder grants more."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from commtrace.atomic_write import atomic_write, make_folder
from commtrace.errors import OutputError
from commtrace.permissions import opener


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def write(path: Path) -> int:
    """Write a file, and return its permissions."""
    with atomic_write(path) as unfinished:
        assert mode(unfinished) & ~0o660 == 0
        unfinished.write_text("text")
    return mode(path)


@pytest.mark.parametrize(
    ("folder", "umask", "file", "inner_folder"),
    [
        (0o755, 0o022, 0o600, 0o700),
        (0o775, 0o002, 0o600, 0o700),
        (0o1777, 0o022, 0o600, 0o700),
        (0o700, 0o022, 0o600, 0o700),
        (0o750, 0o022, 0o640, 0o750),
        (0o770, 0o002, 0o660, 0o770),
        (0o770, 0o077, 0o600, 0o700),
        (0o2775, 0o002, 0o660, 0o2770),
        (0o2755, 0o022, 0o640, 0o2750),
    ],
)
def test_others_may_do_with_a_file_what_its_folder_says(
    folder: int, umask: int, file: int, inner_folder: int, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(folder)
    os.umask(umask)
    assert write(place / "run.json") == file
    with open(place / "spool", "w", opener=opener):
        assert mode(place / "spool") == file
    make_folder(place / "inner")
    assert mode(place / "inner") == inner_folder
    assert mode(place) == folder


def test_folders_on_the_way_are_made_alike_and_existing_ones_stay(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert [mode(tmp_path / name) for name in ("a", "a/b")] == [0o700, 0o700]
    (tmp_path / "a").chmod(0o755)
    make_folder(tmp_path / "a")
    assert mode(tmp_path / "a") == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        make_folder(tmp_path / "file")


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert write(path) == 0o600
    path.chmod(0o644)
    assert write(path) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_of_another_user_does_not_say_who_may_read(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.touch(mode=0o666)
    path.chmod(0o666)
    os.chown(path, 12345, 12345)
    assert write(path) == 0o600


def test_a_list_of_who_may_read_decides_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"list", raising=False)
    path = tmp_path / "page.html"
    os.close(opener(path, os.O_WRONLY | os.O_CREAT))
    assert mode(path) == 0o644  # the system applies the list to this mode
    make_folder(tmp_path / "folder")
    assert mode(tmp_path / "folder") == 0o755


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / f".{os.getpid()}.page.html").symlink_to(target)
    assert write(tmp_path / "page.html") == 0o600
    assert not target.exists()
