"""Tables as JSON or CSV on stdout, with exact numbers in bytes and nanoseconds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from commtrace_cli.terminal import write

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Analysis


def document(run: Mapping[str, Any], tables: Mapping[Analysis, pd.DataFrame]) -> dict[str, Any]:
    """Return the tables with exact numbers and their columns' meanings; unknown values are null."""
    return {"run": dict(run)} | {
        analysis.name: {
            "columns": {
                column.name: {"unit": column.unit, "meaning": column.meaning}
                for column in analysis.columns
            },
            "rows": records(table),
        }
        for analysis, table in tables.items()
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as objects; nan and infinities are None."""
    # Not by pandas' `to_json`, which rounds to at most 15 decimals.
    names = [str(name) for name in table]
    columns = [_values(table[name]) for name in table]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pd.Series) -> list[Any]:
    """Return a column's values; those that JSON cannot represent, nan and infinities, as None."""
    values = column.astype(object).where(column.notna(), None).tolist()
    if column.dtype.kind != "f":
        return values
    return [value if value is not None and math.isfinite(value) else None for value in values]


def write_json(
    run: Mapping[str, Any], tables: Mapping[Analysis, pd.DataFrame], **more: Any
) -> None:
    """Print `document`, extended by `more`: values by name that JSON can represent."""
    _print(document(run, tables) | more)


def write_document(run: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Print named values: dataclasses as objects, nan as null."""
    _print({"run": dict(run)} | {name: _plain(value) for name, value in values.items()})


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, PurePath):
        return str(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _print(written: Mapping[str, Any]) -> None:
    text = json.dumps(written, indent=1).replace("\x7f", "\\u007f")  # the control that JSON allows
    write(f"{text}\n")


def write_csv(table: pd.DataFrame) -> None:
    """Print a table as CSV; unknown values are an empty field or -1.

    Text that a spreadsheet would take for a formula is prefixed with an apostrophe
    (`commtrace.exporters.spreadsheet`).
    """
    from commtrace.exporters.spreadsheet import csv_text

    write(csv_text(table))
