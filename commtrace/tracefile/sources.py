r"""Source of the functions that communicate, as it was when the program ran.

A rank collects `Snippets`, a fact of its spool. Merging turns them into table `sources`, in which a
row is a run of consecutive lines of a file:

    file      line  text
    train.py    84  "for batch in batches:\\n    loss = model(batch)\\n    loss.backward()"

The size of a file, the length of a line and the total of a rank are bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.errors import InvalidTraceError
from commtrace.event import SourceRow

FACT = "sources"
"""Name of a spool's fact that holds the rows of its snippets."""

MARGIN = 3
"""Lines kept before and after a line that communicates, and after a function."""

MAX_FILE_BYTES = 2_000_000
MAX_CHARACTERS_OF_A_LINE = 1_000
MAX_CHARACTERS_SHOWN = 200
"""Maximum characters of a line in an excerpt."""

MAX_CHARACTERS = 256_000
"""Maximum characters of a rank's snippets."""

MAX_CHARACTERS_OF_FUNCTIONS = 192_000
"""Maximum characters of snippets up to which whole functions are added."""

MAX_LINES_OF_A_FUNCTION = 1_500


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a source file, numbered from 1."""

    number: int
    text: str


class Snippets:
    """Lines by file, at most `MAX_CHARACTERS` in total; the first text given for a line is kept.

    `rows` returns them as rows of table `sources`.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, str]] = {}
        self._num_characters = 0

    def add(self, file: str, line: int, lines: Sequence[str]) -> bool:
        """Keep line number `line` of `lines` and its neighbours; False if nothing was added."""
        first, last = max(line - MARGIN, 1), min(line + MARGIN, len(lines))
        if not 1 <= line <= len(lines):
            return False
        return self._keep(file, first, lines[first - 1 : last])

    def add_function(self, file: str, first: int, last: int, lines: Sequence[str]) -> bool:
        """Keep the lines of a function from `first` to `last`; False if nothing was added.

        Some lines more are kept, since the last instruction can be before the end of a statement.
        """
        last = min(last + MARGIN, len(lines))
        if not 1 <= first <= last or last - first >= MAX_LINES_OF_A_FUNCTION:
            return False
        return self._keep(file, first, lines[first - 1 : last], MAX_CHARACTERS_OF_FUNCTIONS)

    def add_row(self, row: Any) -> None:
        """Keep the lines of a row of table `sources`."""
        self._keep(row.file, row.line, row.text.split("\n"))

    def _keep(
        self, file: str, first: int, texts: Sequence[str], most: int = MAX_CHARACTERS
    ) -> bool:
        known = self._lines.get(file, {})
        new = {
            number: text.rstrip()[:MAX_CHARACTERS_OF_A_LINE]
            for number, text in enumerate(texts, first)
            if number not in known
        }
        size = sum(len(text) + 1 for text in new.values()) + (0 if known else len(file))
        if not new or self._num_characters + size > most:
            return False
        self._num_characters += size
        self._lines.setdefault(file, {}).update(new)
        return True

    def rows(self) -> list[Any]:
        """Return rows of table `sources`: the runs of consecutive lines of each file."""
        found = []
        for file, lines in sorted(self._lines.items()):
            blocks: list[tuple[int, list[str]]] = []
            for number, text in sorted(lines.items()):
                if blocks and sum((blocks[-1][0], len(blocks[-1][1]))) == number:
                    blocks[-1][1].append(text)
                else:
                    blocks.append((number, [text]))
            found += [SourceRow(file, first, "\n".join(texts)) for first, texts in blocks]
        return found


def joined(facts: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Join the facts of many spools into rows of table `sources`, bounded like a single rank's.

    If ranks disagree on a line, the first rank's text is kept.

    Raises:
        InvalidTraceError: a fact is not a list of rows.
    """
    snippets = Snippets()
    for each in facts:
        rows = each.get(FACT, [])
        for row in rows if isinstance(rows, list) else [rows]:
            snippets.add_row(_row(row))
    return snippets.rows()


def _row(fact: Any) -> Any:
    is_row = isinstance(fact, list) and len(fact) == 3
    if not is_row or not (type(fact[0]) is type(fact[2]) is str and type(fact[1]) is int):
        raise InvalidTraceError(
            "cannot join the spools",
            place=f"fact {FACT!r}",
            found=repr(fact)[:60],
            why="a snippet is [file, first line, text]: the spool was modified or is damaged",
            attempt="copy the spools again, or record the run again",
        )
    return SourceRow(*fact)


def lines_around(rows: Iterable[Any], file: str, line: int) -> tuple[SourceLine, ...]:
    """Return the recorded lines around a line, itself included; empty if it was not recorded."""
    for row in rows:
        texts = row.text.split("\n")
        if row.file == file and row.line <= line < row.line + len(texts):
            return excerpt(texts, line, row.line)
    return ()


def excerpt(lines: Sequence[str], line: int, first: int = 1) -> tuple[SourceLine, ...]:
    """Return line number `line` with `MARGIN` neighbours on each side; `lines` start at `first`."""
    begin = max(line - MARGIN - first, 0)
    chosen = lines[begin : line + MARGIN + 1 - first]
    return tuple(
        SourceLine(first + begin + place, text.rstrip()[:MAX_CHARACTERS_SHOWN])
        for place, text in enumerate(chosen)
    )


def read_lines(path: Path | str) -> list[str]:
    """Return the lines of a source file; empty if it is missing, too large or not a regular file.

    Never blocks and never reads more than `MAX_FILE_BYTES`, since the path comes from a trace.
    """
    try:
        with open(path, "rb", buffering=0, opener=_without_blocking) as stream:
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_FILE_BYTES:
                return []
            data = stream.read(MAX_FILE_BYTES)
    except (OSError, ValueError):  # missing, not a file, or not a valid name
        return []
    return data.decode("utf-8", errors="replace").splitlines()


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
