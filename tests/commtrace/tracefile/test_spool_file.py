"""A spool stays the same file while the program closes, and takes over, its descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commtrace.tracefile.spool_file import SpoolFile


def test_what_is_written_is_read_back_and_cut_off(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "spool", os.O_EXCL)
    file.write(b"one two")
    file.seek(3)
    file.truncate()
    file.write(b"!")
    file.seek(0)
    assert file.read() == b"one!"
    file.close()
    assert (tmp_path / "spool").read_bytes() == b"one!"


def test_a_file_that_is_there_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "spool").touch()
    with pytest.raises(FileExistsError):
        SpoolFile(tmp_path / "spool", os.O_EXCL)


def test_a_descriptor_that_is_closed_or_another_file_s_by_now_is_not_written_to(
    tmp_path: Path,
) -> None:
    file = SpoolFile(tmp_path / "spool", os.O_EXCL)
    file.write(b"one ")
    number = file.fileno()
    os.close(number)
    file.write(b"two ")
    os.dup2(os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT), number)
    file.write(b"three")
    file.close()
    assert (tmp_path / "spool").read_bytes() == b"one two three"
    assert (tmp_path / "own").read_bytes() == b""
    os.write(number, b"is still open")


def test_a_file_that_was_removed_and_closed_is_an_error(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "spool", os.O_EXCL)
    file.write(b"kept")
    os.close(file.fileno())
    (tmp_path / "spool").unlink()
    with pytest.raises(FileNotFoundError):
        file.write(b"lost")
    (tmp_path / "spool").touch()
    with pytest.raises(FileNotFoundError):
        file.write(b"in the wrong file")
    assert (tmp_path / "spool").read_bytes() == b""
