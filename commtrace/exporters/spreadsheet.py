"""CSV that is safe in spreadsheets, which interpret a cell like `=1+1` as a formula.

An apostrophe is put before a text whose first visible character is one of `= + - @` (or their
full-width forms), or that begins with a tab or a line break. It is also put before a text that has
such an apostrophe already, so that removing one restores the text. Numbers stay unchanged: -1 is
-1. All CSV that commtrace writes passes through `cell`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import pandas as pd

APOSTROPHE = "'"

_INVISIBLE = r"[\s\x00-\x20\x7f-\xa0\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]*"
_FORMULA = re.compile(rf"'*(?:{_INVISIBLE}[=+\-@＝＋－＠]|[\t\r\n])")  # noqa: RUF001
_ROWS_AT_ONCE = 10_000


def cell(value: Any) -> Any:
    """Return a value as a CSV field: text that looks like a formula gets an apostrophe before it.

    >>> cell("=SUM(A1)"), cell("layers.0"), cell(-1)
    ("'=SUM(A1)", 'layers.0', -1)
    """
    if isinstance(value, str) and _FORMULA.match(value):
        return APOSTROPHE + value
    return value


def text_of_cell(field: str) -> str:
    """Return the text from which `cell` made this field.

    >>> text_of_cell("'=SUM(A1)"), text_of_cell("it's")
    ('=SUM(A1)', "it's")
    """
    return field[1:] if field.startswith(APOSTROPHE) and _FORMULA.match(field) else field


def write_csv_rows(stream: TextIO, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a heading and rows, each value passed through `cell`.

    If a batch of rows contains a carriage return, all of its texts are quoted: Python's csv module
    does not quote it, but readers take it for the end of a row.
    """
    plain = csv.writer(stream, lineterminator="\n")
    quoting = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    plain.writerow(names)
    remaining = iter(rows)
    while part := list(islice(remaining, _ROWS_AT_ONCE)):
        has_returns = any(isinstance(each, str) and "\r" in each for each in chain(*part))
        writer = quoting if has_returns else plain
        writer.writerows([cell(value) for value in row] for row in part)


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV; missing values are empty fields."""
    stream = io.StringIO()
    columns = [table[name].astype(object).where(table[name].notna(), "") for name in table]
    rows = zip(*(each.tolist() for each in columns), strict=True)
    write_csv_rows(stream, [str(name) for name in table], rows)
    return stream.getvalue()
