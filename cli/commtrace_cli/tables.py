"""Tables of analyses for the terminal: numbers with units, cut to what fits, saying so.

An analysis and its DataFrame come in, a rich table goes out. How a cell looks depends on its
column's unit alone (`commtrace.units.text_of_value`).
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from commtrace.schema import INSTANT, MAY_BE_NEGATIVE
from commtrace.units import text_of_value
from commtrace_cli.terminal import Text

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Analysis

MEASURES = {
    "calls_per_step": "per step",
    "num_calls": "calls",
    "payload_bytes": "payload",
    "wire_bytes": "wire",
    "blocked_ns": "blocked",
    "share_of_steps": "of steps",
    "share": "of run",
    "busbw_bytes_per_s": "busbw",
}
"""The measures that the terminal shows, in this order, and their headings."""

GIVEN_UP_FIRST = ("busbw_bytes_per_s", "num_calls", "payload_bytes", "calls_per_step")
"""What a narrow terminal goes without, until the rest fits."""


_GAP = 2


def rich_table(console: Console, analysis: Analysis, frame: pd.DataFrame) -> Table:
    """`frame` as the console is wide: its keys, and the measures that are known and fit."""
    if "depth" in frame:
        frame, keys = as_tree(frame), ["module"]
    else:
        keys = [column.name for column in analysis.columns[: _num_keys(analysis)]]
    units = {column.name: column.unit for column in analysis.columns}
    shown = [name for name in MEASURES if name in frame and frame[name].notna().any()]
    if "share_of_steps" in shown:  # a run's time has what comes before them, too
        shown.remove("share")
    texts = {
        name: [text_of_value(value, units[name]) for value in frame[name]] for name in keys + shown
    }
    headings = {name: MEASURES.get(name, name) for name in keys + shown}
    widths = {name: _GAP + max(map(cell_len, [headings[name], *texts[name]])) for name in headings}
    for name in GIVEN_UP_FIRST:
        if sum(widths.values()) - _GAP > console.width and name in shown:
            del headings[name], widths[name]
    return _drawn(analysis.title, headings, texts, MEASURES.keys())


def _num_keys(analysis: Analysis) -> int:
    """How many columns say what a row is about: those before the first measure."""
    return next(i for i, column in enumerate(analysis.columns) if column.name in MEASURES)


def _drawn(
    title: str, headings: dict[str, str], texts: dict[str, list[str]], numbers: Container[str]
) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
    )
    for name, heading in headings.items():
        justify = "right" if name in numbers else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in zip(*(texts[name] for name in headings), strict=True):
        table.add_row(*map(Text, row))
    return table


def plain_table(
    console: Console, analysis: Analysis, frame: pd.DataFrame, start_ns: int
) -> tuple[Table, list[str]]:
    """Any table, each column as its unit says, and the names of those that did not fit.

    A point in time is counted from `start_ns`. The last columns are given up first.
    """
    headings, texts = {}, {}
    for column in analysis.columns:
        unit, values = column.unit, frame[column.name]
        if unit == INSTANT:
            unit, values = "ns", (values - start_ns).where(values >= 0, math.nan)
        elif column.type is int and column.name not in MAY_BE_NEGATIVE:
            values = values.where(values >= 0, math.nan)
        headings[column.name] = column.name.removesuffix("_ns").removesuffix("_bytes")
        is_change = column.name.endswith("_change")
        texts[column.name] = [
            f"{'+' if is_change and value > 0 else ''}{text_of_value(value, unit)}"
            for value in values
        ]
    widths = {name: _GAP + max(map(cell_len, [headings[name], *texts[name]])) for name in headings}
    shown = list(headings)
    while sum(widths[name] for name in shown) - _GAP > console.width and len(shown) > 1:
        shown.pop()
    numbers = {column.name for column in analysis.columns if column.type is not str}
    table = _drawn(analysis.title, {name: headings[name] for name in shown}, texts, numbers)
    return table, [name for name in headings if name not in shown]


def as_tree(frame: pd.DataFrame) -> pd.DataFrame:
    """The table by module with each path drawn as its last part, set in by its depth."""
    names = frame["name"].where(frame["depth"] > 0, "(whole run)")
    drawn = ["  " * (depth - 1) + name for depth, name in zip(frame["depth"], names, strict=True)]
    return frame.assign(module=drawn)


def cut(frame: pd.DataFrame, rows: int) -> pd.DataFrame:
    """The first `rows` rows; of a tree, as many whole levels as fit into them."""
    if len(frame) <= rows:
        return frame
    if "depth" not in frame:
        return frame.head(rows)
    levels = frame["depth"].value_counts().sort_index().cumsum()
    depth = max(levels.index[levels <= rows], default=levels.index[0])
    return frame.loc[frame["depth"] <= depth]
