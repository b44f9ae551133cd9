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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.sql.stored import files_of
from commtrace.analyze.sql.tables import SQL_TABLES, SqlTable, selected
from commtrace.analyze.stored import StoredRun
from commtrace.errors import UsageError, closest
from commtrace.escaping import encodable
from commtrace.units import text_of_bytes, text_of_duration

_MISSING = re.compile(r'Table with name "?(?P<name>[^"!]+?)"? does not exist')
_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_RESERVED = frozenset({"main", "temp", "system", "information_schema", "pg_catalog"})
_SELECTS = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)  # MULTI is that of PIVOT
_COLUMN = re.compile(r'(?:Referenced column|column named|Column) "(?P<name>[^"]+)"')
_CANDIDATES = re.compile(r"Candidate bindings: (?P<names>.*)")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a statement.

    Attributes:
        memory_bytes: memory of the engine; what needs more is spilled to disk.
        disk_bytes: space for that in the folder of temporary files.
        seconds: time.
        rows: rows of a result.
        threads: threads; by default one per core that the process may use.
    """

    memory_bytes: int = 2_000_000_000
    disk_bytes: int = 20_000_000_000
    seconds: float = 600.0
    rows: int = 10_000_000
    threads: int = 0


class Database:
    """Tables of runs, for statements.

    Args:
        runs: the runs by name. A table of a run that has a name is `NAME.table`; the tables of the
            run "" go by their own names.
        limits: limits of each statement.

    Raises:
        UsageError: a name is not valid for a schema.
    """

    def __init__(self, runs: Mapping[str, Frames], limits: Limits | None = None) -> None:
        for name in runs:
            if name and (not _NAME.fullmatch(name) or name.lower() in _RESERVED):
                raise UsageError(
                    f"cannot name a run {name!r}",
                    why="it is the first part of names of tables",
                    attempt="a name of letters, digits and _, such as `before`",
                )
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
        statement = encodable(statement)
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
                "threads": limits.threads or len(os.sched_getaffinity(0)),
                "temp_directory": f"{folder}/spilled",
                "max_temp_directory_size": f"{limits.disk_bytes}B",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
            }
        )
        stored = [each for each in self._runs.values() if isinstance(each, StoredRun)]
        folders = [f"{folder}/computed", *(str(each.dataset.target.resolve()) for each in stored)]
        quoted = ", ".join(map(_quoted, folders))
        connection.execute(f"SET allowed_directories = [{quoted}]")
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
            raise _unusable(statement, error) from None
        kinds = [each.type for each in parsed]
        if len(kinds) == 1 and kinds[0] in _SELECTS:
            return
        names = ", ".join(each.name for each in kinds) or "no statement"
        raise UsageError(
            f"cannot run {_short(statement)}",
            found=names if len(kinds) < 2 else f"{len(kinds)} statements: {names}",
            why="one statement that selects is run, and nothing is changed",
            attempt="SELECT ... FROM calls",
        )

    def _answer(self, statement: str) -> pd.DataFrame:
        selection = self._connection.sql(statement)
        most = self._limits.rows
        names = _distinct(selection.columns)
        # Sums of integers are of 128 bits, of which DataFrames have none.
        columns = ", ".join(
            f"#{place}{'::BIGINT' if str(of_type) == 'HUGEINT' else ''} AS {_identifier(name)}"
            for place, (name, of_type) in enumerate(
                zip(names, selection.types, strict=True), start=1
            )
        )
        found = selection.project(columns).limit(most + 1).df()
        if len(found) > most:
            raise UsageError(
                f"cannot return all rows of {_short(statement)}",
                found=f"more than {most:,}",
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
        new = [run for run in runs if (run, name) not in self._stated]
        for run in new if table is not None else ():
            assert table is not None
            self._state(run, table)
        return bool(new) and table is not None

    def _state(self, run: str, table: SqlTable) -> None:
        """Create a table of a run, with those that it reads."""
        if (run, table.name) in self._stated:
            return
        self._stated.add((run, table.name))
        schema = f'"{run}".' if run else "main."
        target = f"{schema}{table.name}"
        if table.rows is None:
            for name in table.needs:
                self._state(run, SQL_TABLES[name])
            self._connection.execute(f"CREATE VIEW {target} AS {table.view.format(schema)}")
            return
        frames = self._runs[run]
        files: list[Path] = []
        if isinstance(frames, StoredRun):
            folder = Path(self._folder.name) / "computed" / (run or "run") / table.name
            files = files_of(frames, table.name, folder)
        if files:
            source = f"read_parquet([{', '.join(_quoted(str(each.resolve())) for each in files)}])"
            given = self._connection.sql(f"SELECT * FROM {source}").columns
        else:
            rows = table.rows(frames)
            source = f'"_{run}_{table.name}"'
            given = [str(each) for each in rows]
            self._connection.register(source.strip('"'), rows)
        columns = selected(table.columns, given)
        self._connection.execute(f"CREATE VIEW {target} AS SELECT {columns} FROM {source}")

    def _no_table(self, statement: str, error: str) -> UsageError:
        match = _MISSING.search(error)
        if match is None:
            return _unusable(statement, error)
        name = match["name"]
        names = [f"{run}.{each}" if run else each for run in self._runs for each in SQL_TABLES]
        own = [each for each in names if each.rpartition(".")[2] == name.rpartition(".")[2].lower()]
        return UsageError(
            f"no table {name!r}",
            found=_short(statement),
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
        timer = threading.Timer(most, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except duckdb.CatalogException:
            raise
        except duckdb.InterruptException:
            if time.monotonic() - begun < most:
                raise KeyboardInterrupt from None
            raise UsageError(
                f"cannot finish {_short(statement)}",
                found=f"no result after {text_of_duration(int(most * 1e9))}",
                attempt="fewer rows: WHERE, or a table that is summed already, such as by_module",
            ) from None
        except duckdb.OutOfMemoryException as error:
            limits = self._limits
            memory, disk = map(text_of_bytes, (limits.memory_bytes, limits.disk_bytes))
            raise UsageError(
                f"cannot finish {_short(statement)}",
                found=_first_line(error),
                why=f"a statement may use {memory} of memory and {disk} of disk",
                attempt="fewer rows or columns, or a larger --memory",
            ) from None
        except duckdb.Error as error:
            raise _unusable(statement, error) from None
        finally:
            timer.cancel()


def _unusable(statement: str, error: Exception | str) -> UsageError:
    """Return the error of a statement that the engine refuses, with the name that was meant."""
    text = str(error)
    column, given = _COLUMN.search(text), _CANDIDATES.search(text)
    attempt = ""
    if column is not None:
        known = {each.name for table in SQL_TABLES.values() for each in table.columns}
        candidates = re.findall(r'"([^"]+)"', given["names"]) if given else []
        near = get_close_matches(column["name"], [*candidates, *sorted(known)], n=1)
        attempt = near[0] if near else ", ".join(candidates)
    return UsageError(
        f"cannot run {_short(statement)}",
        found=_first_line(text),
        why="no file, extension or setting can be reached" if "Permission Error" in text else "",
        attempt=attempt,
    )


def _first_line(error: Exception | str) -> str:
    """Return the first line of an error of the engine, without its kind."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", line)


def _short(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _identifier(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _distinct(names: list[str]) -> list[str]:
    """Return the names of columns, with a number appended to repeated names."""
    found: list[str] = []
    for name in names:
        number, new = 1, name
        while new in found:
            new, number = f"{name}_{number}", number + 1
        found.append(new)
    return found
