"""A connection over some runs: what a statement may do, its limits and its errors.

A statement may come from somebody else. It can only select. It reads the tables of the runs, and no
other file; it can neither write, nor load extensions, nor change settings; and it ends at its
limits of memory, disk, time and rows.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.sql.statements import (
    distinct,
    first_line,
    only_selects,
    quoted,
    short,
    unusable,
    with_integers_as,
)
from commtrace.analyze.sql.stored import files_of
from commtrace.analyze.sql.tables import SQL_TABLES, SqlTable, selected
from commtrace.analyze.stored import StoredRun
from commtrace.errors import UsageError, closest
from commtrace.escaping import encodable
from commtrace.units import text_of_bytes, text_of_duration

_MISSING = re.compile(r'Table with name "?(?P<name>[^"!]+?)"? does not exist')
_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_RESERVED = frozenset({"main", "temp", "system", "memory", "information_schema", "pg_catalog"})
_BETWEEN_S = 0.05
_GRACE_S = 5.0
"""Time after which a statement that is interrupted is stuck, such as in a scalar function."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a statement.

    Attributes:
        memory_bytes: memory of the engine; what needs more is spilled to disk.
        disk_bytes: space for that in the folder of temporary files.
        seconds: time.
        rows: rows of a result.
        values: values of a result, rows times columns.
    """

    memory_bytes: int = 2_000_000_000
    disk_bytes: int = 20_000_000_000
    seconds: float = 600.0
    rows: int = 10_000_000
    values: int = 100_000_000


class Database:
    """Tables of runs, for statements.

    Args:
        runs: the runs by name. A table of a run that has a name is `NAME.table`; the tables of the
            run "" go by their own names.
        limits: limits of each statement.
        when_stuck: called if a statement does not end although it is interrupted, as within
            a scalar function; by default, the statement is waited for.

    Raises:
        UsageError: a name cannot be a schema's, or is given twice.
    """

    def __init__(
        self,
        runs: Mapping[str, Frames],
        limits: Limits | None = None,
        when_stuck: Callable[[], None] | None = None,
    ) -> None:
        _require_names([*runs])
        self._when_stuck = when_stuck
        self._runs = {name.lower(): frames for name, frames in runs.items()}
        self._limits = limits or Limits()
        self._stated: set[tuple[str, str]] = set()
        self._folder = TemporaryDirectory(prefix="commtrace-sql-")
        self._connection = self._opened()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and remove its temporary files."""
        self._connection.close()
        self._folder.cleanup()

    def query(self, statement: str) -> pd.DataFrame:
        """Return the rows that a statement selects, in its order; unknown values are missing.

        Raises:
            UsageError: the statement is none, does more than select, names what does not exist, or
                exceeds a limit.
        """
        statement = encodable(str(statement))
        self._require_select(statement)
        while True:
            try:
                with self._limited(statement):
                    return self._answer(statement)
            except duckdb.CatalogException as error:
                if not self._state_missing(statement, str(error)):
                    raise self._no_table(statement, str(error)) from None

    def _opened(self) -> duckdb.DuckDBPyConnection:
        limits, folder = self._limits, self._folder.name
        connection = duckdb.connect(
            config={
                "memory_limit": f"{limits.memory_bytes}B",
                "threads": len(os.sched_getaffinity(0)),
                "temp_directory": f"{folder}/spilled",
                "max_temp_directory_size": f"{limits.disk_bytes}B",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
            }
        )
        stored = [each for each in self._runs.values() if isinstance(each, StoredRun)]
        folders = [f"{folder}/files", *(str(each.dataset.target.resolve()) for each in stored)]
        allowed = ", ".join(map(quoted, folders))
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        for name in self._runs:
            if name:
                connection.execute(f'CREATE SCHEMA "{name}"')
        return connection

    def _require_select(self, statement: str) -> None:
        try:
            parsed = self._connection.extract_statements(statement)
        except duckdb.Error as error:
            raise unusable(statement, error) from None
        kinds = [each.type for each in parsed]
        if kinds == [duckdb.StatementType.SELECT]:
            return
        # Of several kinds, whose statement has a PIVOT somewhere.
        if kinds == [duckdb.StatementType.MULTI] and only_selects(statement):
            return
        names = ", ".join(each.name for each in kinds) or "no statement"
        raise UsageError(
            f"cannot run {short(statement) or 'an empty statement'}",
            found=names if len(kinds) < 2 else f"{len(kinds)} statements: {names}",
            why="a single statement that selects is run, and nothing is changed",
            attempt="SELECT ... FROM calls",
        )

    def _answer(self, statement: str) -> pd.DataFrame:
        selection = self._connection.sql(statement)
        names = distinct(selection.columns)
        most = min(self._limits.rows, self._limits.values // max(len(names), 1))
        try:
            found = with_integers_as(selection, names, "BIGINT").limit(most + 1).df()
        except (duckdb.ConversionException, duckdb.OutOfRangeException):
            found = with_integers_as(selection, names, "DOUBLE").limit(most + 1).df()
        if len(found) > most:
            raise UsageError(
                f"cannot return all rows of {short(statement)}",
                found=f"more than {most:,} rows of {len(names)} columns",
                attempt="LIMIT, or a sum by GROUP BY",
            )
        return found

    def _state_missing(self, statement: str, error: str) -> bool:
        """Create the table that a statement names, if it is known and not yet created."""
        match = _MISSING.search(error)
        name = match["name"].rpartition(".")[2].lower() if match else ""
        runs = [
            run
            for run in self._runs
            if not run
            or re.search(rf'"?{re.escape(run)}"?\s*\.\s*"?{re.escape(name)}', statement, re.I)
        ]
        table = SQL_TABLES.get(name)
        new = [run for run in runs or self._runs if (run, name) not in self._stated]
        for run in new if table is not None else ():
            assert table is not None
            self._state(run, table)
        return bool(new) and table is not None

    def _state(self, run: str, table: SqlTable) -> None:
        """Create a table of a run, with those that it reads."""
        if (run, table.name) in self._stated:
            return
        schema = f'"{run}".' if run else "main."
        target = f"{schema}{table.name}"
        if table.rows is None:
            for name in table.needs:
                self._state(run, SQL_TABLES[name])
            self._connection.execute(f"CREATE VIEW {target} AS {table.view.format(schema)}")
            self._stated.add((run, table.name))
            return
        frames = self._runs[run]
        files: list[Path] = []
        if isinstance(frames, StoredRun):
            folder = Path(self._folder.name) / "files" / (run or "run")
            files = files_of(frames, table.name, folder)
        if files:
            paths = ", ".join(quoted(str(each)) for each in files)
            source = f"read_parquet([{paths}], hive_partitioning = false)"
            given = self._connection.sql(f"SELECT * FROM {source}").columns
        else:
            rows = table.rows(frames)
            source = f'"_{run}_{table.name}"'
            given = [str(each) for each in rows]
            self._connection.register(source.strip('"'), rows)
        columns = selected(table.columns, given)
        self._connection.execute(f"CREATE VIEW {target} AS SELECT {columns} FROM {source}")
        self._stated.add((run, table.name))

    def _no_table(self, statement: str, error: str) -> UsageError:
        match = _MISSING.search(error)
        if match is None:
            return unusable(statement, error)
        name = match["name"]
        names = [f"{run}.{each}" if run else each for run in self._runs for each in SQL_TABLES]
        own = [each for each in names if each.rpartition(".")[2] == name.rpartition(".")[2].lower()]
        return UsageError(
            f"no table {name!r}",
            found=short(statement),
            why="statements see the tables that `commtrace sql RUN` lists",
            attempt=" or ".join(own) if own else closest(name.lower(), names),
        )

    @contextmanager
    def _limited(self, statement: str) -> Iterator[None]:
        """Interrupt what takes too long, and raise errors of the engine as errors of the user.

        A missing table is left to the caller, which may create it.
        """
        most = self._limits.seconds
        begun = time.monotonic()
        is_over = threading.Event()
        threading.Thread(target=self._interrupt, args=(most, is_over), daemon=True).start()
        try:
            yield
        except duckdb.CatalogException:
            raise
        except duckdb.InterruptException:
            if time.monotonic() - begun < most:
                raise KeyboardInterrupt from None
            raise UsageError(
                f"cannot finish {short(statement)}",
                found=f"no result after {text_of_duration(int(most * 1e9))}",
                attempt="fewer rows: WHERE, or a table that is summed already, such as by_module",
            ) from None
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            limits = self._limits
            memory, disk = map(text_of_bytes, (limits.memory_bytes, limits.disk_bytes))
            raise UsageError(
                f"cannot finish {short(statement)}",
                found=first_line(error) or "no memory",
                why=f"a statement may use {memory} of memory and {disk} of disk",
                attempt="fewer rows or columns, or a larger --memory",
            ) from None
        except duckdb.Error as error:
            raise unusable(statement, error) from None
        except RuntimeError as error:
            if "interrupted" in str(error):  # by Ctrl-C
                raise KeyboardInterrupt from None
            raise
        finally:
            is_over.set()

    def _interrupt(self, after_s: float, is_over: threading.Event) -> None:
        """Interrupt a statement that is not over after a time, until it is."""
        if is_over.wait(after_s):
            return
        stuck_at = time.monotonic() + _GRACE_S
        # One that comes between two parts of a statement is lost.
        while not is_over.wait(_BETWEEN_S):
            self._connection.interrupt()
            if self._when_stuck is not None and time.monotonic() > stuck_at:
                self._when_stuck()
                return


def _require_names(names: Sequence[str]) -> None:
    """Refuse names of runs that no statement could use, or that are one."""
    keywords = (
        {
            name
            for (name,) in duckdb.execute(
                "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
            ).fetchall()
        }
        if any(names)
        else set()
    )
    for name in filter(None, names):
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED | keywords:
            raise UsageError(
                f"cannot name a run {name!r}",
                why="it is the first part of names of tables, and a word of SQL is none",
                attempt="a name of letters, digits and _, such as `before`",
            )
    if len({name.lower() for name in names}) < len(names):
        raise UsageError(
            f"cannot tell the runs {', '.join(names)} apart",
            why="names of tables in SQL are the same in upper and lower case",
            attempt="another name",
        )
