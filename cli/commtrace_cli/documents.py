"""Tables for programs: exact numbers in bytes and nanoseconds, as JSON or CSV on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Analysis


def document(run: Mapping[str, Any], tables: Mapping[Analysis, pd.DataFrame]) -> dict[str, Any]:
    """The tables with exact numbers, and what their columns mean; null is not known."""
    return {"run": dict(run)} | {
        analysis.name: {
            "columns": {
                column.name: {"unit": column.unit, "meaning": column.meaning}
                for column in analysis.columns
            },
            "rows": json.loads(table.to_json(orient="records") or "[]"),
        }
        for analysis, table in tables.items()
    }


def write_json(run: Mapping[str, Any], tables: Mapping[Analysis, pd.DataFrame]) -> None:
    """Print `document`."""
    sys.stdout.write(json.dumps(document(run, tables), indent=1) + "\n")


def write_csv(table: pd.DataFrame) -> None:
    """Print a table; what is not known is an empty field or -1."""
    sys.stdout.write(table.to_csv(index=False))
