"""Results of statements as Parquet."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a result; unknown values are null."""
    with duckdb.connect() as connection:
        connection.from_df(table).write_parquet(str(path))
