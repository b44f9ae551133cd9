"""Lines of cells by what a reader of the notebook calls them: `In[3]` instead of a made-up file."""

from __future__ import annotations

import dataclasses
import linecache
import sys

from commtrace.tracefile import StringColumn, Trace

_COLUMNS = (("comm", "source_file"), ("comm", "stack"), ("sources", "file"))


def names_of_cells() -> dict[str, str]:
    """The names of cells that ran in this process by their files' names; none outside IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return {}
    told = {file: shell.compile.format_code_name(file) for file in list(linecache.cache)}
    return {file: label[1] for file, label in told.items() if label}


def with_names(text: str, names: dict[str, str]) -> str:
    """A text, such as a traceback, with the names of cells in place of their files."""
    for file, name in names.items():
        text = text.replace(file, name)
    return text


def with_cells(trace: Trace) -> Trace:
    """The trace with the names of cells in place of their files."""
    names = names_of_cells()
    tables = {name: dict(trace.tables[name]) for name, _ in _COLUMNS}
    for name, column in _COLUMNS:
        values = tables[name].get(column)
        if names and isinstance(values, StringColumn):
            strings = [with_names(text, names) for text in values.strings]
            tables[name][column] = StringColumn(values.codes, strings)
    return dataclasses.replace(trace, tables={**trace.tables, **tables})
