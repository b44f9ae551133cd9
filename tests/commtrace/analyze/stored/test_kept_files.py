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
    spoiled = [whole[:place] + b"\xff" + whole[place + 1 :] for place in range(len(whole))]
    spoiled += [whole[:-1], whole + b"\0", whole[:12], b""]
    for place, content in enumerate(spoiled):
        other = tmp_path / f"spoiled-{place}"
        other.write_bytes(content)
        with pytest.raises(DamageError):
            verified_size(other)


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
