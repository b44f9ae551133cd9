"""A file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from commtrace.writing import whole


def test_what_is_there_stays_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with whole(path) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
        assert (unfinished.parent, unfinished.suffix) == (tmp_path, ".html")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_what_was_not_written_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def write() -> None:
        with whole(path) as unfinished:
            unfinished.write_text("aft")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
