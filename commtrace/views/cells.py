"""Names of notebook cells in source locations: `In[3]` instead of a generated file name."""

from __future__ import annotations

import dataclasses
import linecache
import sys

from commtrace.tracefile import StringColumn, Trace

_COLUMNS = (("comm", "source_file"), ("comm", "stack"), ("sources", "file"))


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
    tables = {name: dict(trace.tables[name]) for name, _ in _COLUMNS}
    for name, column in _COLUMNS:
        values = tables[name].get(column)
        if names and isinstance(values, StringColumn):
            strings = [with_names(text, names) for text in values.strings]
            tables[name][column] = StringColumn(values.codes, strings)
    return dataclasses.replace(trace, tables={**trace.tables, **tables})
