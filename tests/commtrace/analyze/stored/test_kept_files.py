"""Files that are kept with a checksum."""

from __future__ import annotations

from pathlib import Path

import pytest

from commtrace.analyze.stored.kept_files import sealed, verified_size
from commtrace.tracefile.reading import DamageError


@pytest.mark.parametrize("content", [b"", b"x", b"commtrac" * 1000])
def test_what_was_written_is_verified(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    with sealed(path) as file:
        file.write(content)
    assert verified_size(path) == len(content)
    assert path.read_bytes()[: len(content)] == content


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with sealed(path) as file:
        file.write(b"0123456789")
    whole = path.read_bytes()
    spoiled = [
        whole[:place] + bytes([byte ^ 0xFF]) + whole[place + 1 :]
        for place, byte in enumerate(whole)
    ]
    spoiled += [whole[:-1], whole + b"\0", whole[:12], b""]
    for content in spoiled:
        path.write_bytes(content)
        with pytest.raises(DamageError):
            verified_size(path)
    path.write_bytes(whole)
    assert verified_size(path) == 10


@pytest.mark.parametrize("name", ["run/rows/t/2", "run/rows/u/1", "run/x/t/1", "other/rows/t/1"])
def test_an_intact_file_counts_under_its_own_name_only(tmp_path: Path, name: str) -> None:
    paths = [tmp_path / "run" / "rows" / "t" / "1", tmp_path / name]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        with sealed(path) as file:
            file.write(b"0123456789")
    assert [verified_size(path) for path in paths] == [10, 10]
    data = paths[0].read_bytes()
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(DamageError, match="a name"):
        verified_size(paths[0])
    moved = tmp_path / "elsewhere" / "run" / "rows" / "t" / "1"
    moved.parent.mkdir(parents=True)
    moved.write_bytes(data)
    assert verified_size(moved) == 10


def test_a_file_that_changed_since_is_verified_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with sealed(path) as file:
        file.write(b"0123456789")
    assert verified_size(path) == 10
    path.write_bytes(b"other")
    with pytest.raises(DamageError):
        verified_size(path)


def test_an_interrupted_file_has_no_name(tmp_path: Path) -> None:
    def interrupted() -> None:
        with sealed(tmp_path / "file") as file:
            file.write(b"0123456789")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [*tmp_path.iterdir()] == []
