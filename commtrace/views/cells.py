"""Names of notebook cells in source locations: `In[3]` instead of a generated file name."""

from __future__ import annotations

import dataclasses
import linecache
import sys
from array import array
from typing import Any

from commtrace.event import SourceRow
from commtrace.tracefile.sources import Snippets
from commtrace.tracefile.trace import (
    Columns,
    ColumnValues,
    StringColumn,
    StringTable,
    Trace,
    table_of,
)

_COLUMNS = (
    ("comm", "source_file"),
    ("comm", "stack"),
    ("comm", "callers"),
    ("host_events", "source_file"),
    ("host_events", "stack"),
)
_MAGIC = "run_cell_magic("


def names_of_cells() -> dict[str, str]:
    """Return the names of cells that ran in this process, by file name; none outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return {}
    labels = {file: shell.compile.format_code_name(file) for file in list(linecache.cache)}
    return {file: label[1] for file, label in labels.items() if label}


def with_names(text: str, names: dict[str, str]) -> str:
    """Replace the file names of cells in a text, such as a traceback, by the cells' names."""
    for file, name in names.items():
        text = text.replace(file, name)
    return text


def with_cells(trace: Trace) -> Trace:
    """Replace the file names of cells in a trace by the cells' names."""
    names = names_of_cells()
    if not names:
        return trace
    tables = {name: dict(trace.tables[name]) for name, _ in _COLUMNS}
    for name, column in _COLUMNS:
        tables[name][column] = _renamed(tables[name][column], names)
    sources = table_of("sources", _joined_lines(trace.tables["sources"], names), StringTable())
    return dataclasses.replace(trace, tables={**trace.tables, **tables, "sources": sources})


def _renamed(values: ColumnValues, names: dict[str, str]) -> ColumnValues:
    """Replace names in a column; a cell that runs another has two files of the same name."""
    if not isinstance(values, StringColumn):
        return values
    strings = [with_names(text, names) for text in values.strings]
    first: dict[str, int] = {}
    places = [first.setdefault(text, place) for place, text in enumerate(strings)]
    codes = array(values.codes.typecode, [places[code] for code in values.codes])
    return StringColumn(codes, strings)


def _joined_lines(sources: Columns, names: dict[str, str]) -> list[Any]:
    """Return the lines by cell; a cell's own lines replace the call by which a magic runs it."""
    rows = [*map(SourceRow, sources["file"], sources["line"], sources["text"])]
    snippets = Snippets()
    for row in sorted(rows, key=lambda row: _MAGIC in row.text):
        snippets.add_row(row._replace(file=with_names(row.file, names)))
    return snippets.rows()
