"""SQL over the tables of runs, read-only.

database   a connection over some runs: what a statement may do, and its limits
statements texts of statements, and errors about them
tables     the tables that statements see: of the trace, of each call, and of the analyses
stored     the files of a run that is larger than memory
files      results as Parquet
"""

from __future__ import annotations

from commtrace.analyze.sql.database import Database, Limits
from commtrace.analyze.sql.files import write_parquet
from commtrace.analyze.sql.tables import SQL_TABLES, SqlTable

__all__ = ["SQL_TABLES", "Database", "Limits", "SqlTable", "write_parquet"]
