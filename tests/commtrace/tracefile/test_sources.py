"""Source lines are bounded, joined once per line, and read from nothing but regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commtrace.errors import InvalidTraceError
from commtrace.event import SourceRow
from commtrace.tracefile.sources import (
    MAX_CHARACTERS,
    MAX_CHARACTERS_OF_A_LINE,
    MAX_FILE_BYTES,
    Snippets,
    excerpt,
    joined,
    lines_around,
    read_lines,
)

LINES = [f"line {number}" for number in range(1, 41)]


def numbers(rows: list) -> list[int]:
    return [row.line + place for row in rows for place in range(len(row.text.split("\n")))]


def test_lines_that_lie_close_together_are_kept_once() -> None:
    snippets = Snippets()
    for line in (10, 12, 30, 1, 40):
        assert snippets.add("train.py", line, LINES)
    rows = snippets.rows()
    assert numbers(rows) == [*range(1, 5), *range(7, 16), *range(27, 34), *range(37, 41)]
    assert rows[1] == SourceRow("train.py", 7, "\n".join(LINES[6:15]))
    assert not snippets.add("train.py", 11, LINES)


@pytest.mark.parametrize("line", [-1, 0, 41, 1 << 40])
def test_a_line_that_the_file_does_not_have_is_not_kept(line: int) -> None:
    snippets = Snippets()
    assert not snippets.add("train.py", line, LINES)
    assert snippets.rows() == []


def test_what_is_kept_is_bounded() -> None:
    snippets = Snippets()
    long = ["x" * 10_000] * 100_000
    for line in range(1, 100_000, 7):
        snippets.add("generated.py", line, long)
    rows = snippets.rows()
    assert MAX_CHARACTERS / 2 < sum(len(row.text) for row in rows) <= MAX_CHARACTERS
    assert max(len(text) for row in rows for text in row.text.split("\n")) <= (
        MAX_CHARACTERS_OF_A_LINE
    )


def test_ranks_are_joined_line_by_line_and_the_first_one_s_text_holds() -> None:
    one = {"sources": [["a.py", 3, "x\ny"]]}
    other = {"sources": [["a.py", 4, "Y\nz"], ["b.py", 1, ""]]}
    assert joined([one, {}, other]) == [SourceRow("a.py", 3, "x\ny\nz"), SourceRow("b.py", 1, "")]
    assert joined([other, one])[0] == SourceRow("a.py", 3, "x\nY\nz")


@pytest.mark.parametrize("fact", [3, [3], [["a.py", "3", "x"]], [["a.py", True, "x"]], {"a": 1}])
def test_a_fact_of_another_form_is_refused(fact: object) -> None:
    with pytest.raises(InvalidTraceError, match="a snippet is") as refused:
        joined([{"sources": fact}])
    assert refused.value.attempt


def test_a_line_is_found_with_its_neighbours_in_the_stretch_that_has_it() -> None:
    rows = [SourceRow("b.py", 1, "q"), SourceRow("a.py", 5, "\n".join(LINES[4:20]))]
    found = lines_around(rows, "a.py", 6)
    assert [(each.number, each.text) for each in found] == list(
        zip(range(5, 10), LINES[4:9], strict=True)
    )
    assert lines_around(rows, "a.py", 4) == lines_around(rows, "a.py", 21) == ()
    assert excerpt(LINES, 6)[0].number == 3


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"a\n\xff\nb")
    assert read_lines(tmp_path / "a.py") == ["a", "\ufffd", "b"]
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large.py").write_bytes(b"\n" * (MAX_FILE_BYTES + 1))
    for path in (tmp_path / "fifo", tmp_path / "large.py", tmp_path, "/dev/zero", "\0", "gone"):
        assert read_lines(path) == [], path
