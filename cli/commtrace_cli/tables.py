"""Tables of analyses for the terminal: numbers with units, in the columns that fit.

Takes an analysis and its DataFrame and returns a `Fitted` table. A cell's format depends only on
its column's unit (`commtrace.units.text_of_value`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commtrace.schema import INSTANT, MAY_BE_NEGATIVE, Column
from commtrace.units import contracted, text_of_mean, text_of_value
from commtrace_cli.fitting import Fitted, fitted

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Analysis, Frames

UNTIMED = "num_untimed"
"""Measure that is shown only where a call was not timed."""

TERMINAL_MEASURES = (
    "calls_per_step",
    "num_calls",
    "payload_bytes",
    "wire_bytes",
    "blocked_ns",
    "device_ns",
    UNTIMED,
    "share_of_steps",
    "share",
    "busbw_bytes_per_s",
)
"""Measures that the terminal shows, in this order; their titles are in `analyze.measures`."""

FIRST_MEASURES = (
    "blocked_ns",
    "device_ns",
    "wire_bytes",
    "share_of_steps",
    "share",
    "calls_per_step",
)
"""Measures that a narrow terminal shows first, after a table's first column."""

_UNITS_OF_MEASURES = ("ns", "bytes", "1")

_SUFFIXES = ("_bytes_per_s", "_ns", "_bytes")
"""Units at the end of names, which headings leave out, since each value has its unit."""

MEANS_OVER_RANKS = ("num_calls", "own_num_calls", UNTIMED)
"""Counts that are means over ranks where their column has fractions."""


def measures_table(
    width: int, analysis: Analysis, frame: pd.DataFrame, num_ranks: int = 1
) -> Fitted:
    """Return a table with `commtrace.analyze.measures.measures`: its keys and the known measures.

    Numbers of calls that are not whole as means over `num_ranks` are shown in all.
    """
    if "depth" in frame:
        frame, keys = as_tree(frame), ["module"]
    elif "source_line" in frame:
        frame, keys = as_lines(frame), ["line"]
    else:
        keys = [column.name for column in analysis.columns[: _num_keys(analysis)]]
    columns = {column.name: column for column in (*analysis.columns, _LINE)}
    shown = [name for name in TERMINAL_MEASURES if name in frame and frame[name].notna().any()]
    if UNTIMED in shown and not frame[UNTIMED].any():
        shown.remove(UNTIMED)
    if "share_of_steps" in shown:  # the run's time includes what precedes the steps
        shown = [name for name in shown if name != "share"]
    texts = {
        name: [_text(columns[name], value, num_ranks) for value in frame[name]]
        for name in keys + shown
    }
    first = [name for name in FIRST_MEASURES if name in shown]
    return fitted(
        {name: name for name in keys} | {name: columns[name].heading.lower() for name in shown},
        texts,
        width=width,
        numbers=TERMINAL_MEASURES,
        importance=[keys[0], *first[:1], *keys[1:], *first[1:]],
        title=analysis.title,
    )


def _text(column: Column, value: Any, num_ranks: int) -> str:
    """Format a cell by its column: a mean of calls, a list of ranks, or a value with its unit."""
    if column.type is float and column.name in MEANS_OVER_RANKS:
        return text_of_mean(value, num_ranks)
    if column.form == "ranks":
        return contracted(value) or "–"
    return text_of_value(value, column.unit)


def _num_keys(analysis: Analysis) -> int:
    """Return the number of key columns: those before the first measure."""
    return next(i for i, column in enumerate(analysis.columns) if column.name in TERMINAL_MEASURES)


def plain_table(
    width: int,
    analysis: Analysis,
    frame: pd.DataFrame,
    start_ns: int,
    *,
    num_ranks: int = 1,
    title: bool = True,
    important: Sequence[str] = (),
) -> Fitted:
    """Return any table, formatted by column unit; points in time count from `start_ns`.

    Numbers of calls that are not whole as means over `num_ranks` are shown in all.

    By default the most important columns are the first, the first with a size, a time or a share,
    and then those that the page shows.
    """
    headings, texts = {}, {}
    for column in analysis.columns:
        values = frame[column.name]
        if column.unit == INSTANT:
            column = replace(column, unit="ns")
            values = (values - start_ns).where(values >= 0, math.nan)
        elif column.type is int and column.name not in MAY_BE_NEGATIVE:
            values = values.where(values >= 0, math.nan)
        unit = next((each for each in _SUFFIXES if column.name.endswith(each)), "")
        headings[column.name] = column.name.removesuffix(unit)
        is_change = column.name.endswith("_change")
        texts[column.name] = [
            column.minus
            if column.minus and math.isnan(value)
            else f"{'+' if is_change and value > 0 else ''}{_text(column, value, num_ranks)}"
            for value in values
        ]
    return fitted(
        headings,
        texts,
        width=width,
        numbers={column.name for column in analysis.columns if column.type is not str},
        importance=important or _importance(analysis),
        title=analysis.title if title else "",
    )


def _importance(analysis: Analysis) -> list[str]:
    """Return the names of columns, most important first."""
    units = {column.name: column.unit for column in analysis.columns}
    listed = analysis.shown.split() or list(units)
    measure = [name for name in listed if units[name] in _UNITS_OF_MEASURES]
    return list(dict.fromkeys([*listed[:1], *measure[:1], *listed]))


def as_tree(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table by module, with each path shown as its last part, indented by depth."""
    names = frame["name"].where(frame["depth"] > 0, "(whole run)")
    drawn = ["  " * (depth - 1) + name for depth, name in zip(frame["depth"], names, strict=True)]
    return frame.assign(module=drawn)


_LINE = Column("line", str, "", "line of the program, and its function")


def as_lines(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table by source line, with each line as `train.py:12 step`; "–" if unknown.

    Lines that call through a library name its frame: `train.py:12 step via trainer.py:90 train`.
    """
    keys = frame[["source_file", "source_line", "source_function", "via"]].itertuples(index=False)
    lines = [
        f"{file}:{line} {name}".rstrip() + f" via {via}" * bool(via) if file else "–"
        for file, line, name, via in keys
    ]
    return frame.assign(line=lines)


def with_relative_files(frames: Frames, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with source files named relative to the program's folder."""
    if "source_file" not in frame:
        return frame
    from commtrace.analyze.run.program_folder import relative

    files = [relative(frames, str(file)) for file in frame["source_file"]]
    return frame.assign(source_file=files)


def truncated(frame: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return the first `rows` rows, or as many complete levels of a tree as fit."""
    if len(frame) <= rows:
        return frame
    if "depth" not in frame:
        return frame.head(rows)
    levels = frame["depth"].value_counts().sort_index().cumsum()
    depth = max(levels.index[levels <= rows], default=levels.index[0])
    return frame.loc[frame["depth"] <= depth]
