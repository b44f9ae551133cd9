"""`commtrace sql`: questions to a run in SQL, for which there is no table."""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from commtrace.atomic_write import atomic_write
from commtrace.errors import UsageError
from commtrace_cli.documents import records, write_csv
from commtrace_cli.fitting import fitted, omissions
from commtrace_cli.loading import load_run, say_replayed
from commtrace_cli.options import printing, processes, selection, statements
from commtrace_cli.terminal import Text, check_output, data_console, fail, finish, working, write

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Frames

EXAMPLE = """
Examples:

- `commtrace sql run.json` lists the tables with their columns
- `commtrace sql run.json "SELECT kind, count(*), sum(wire_bytes) FROM comm GROUP BY kind"`
- `commtrace sql run.json -f slowest.sql -o slowest.parquet`
- `commtrace sql a=before.json b=after.json -f compare.sql`, in which tables are `a.comm`, `b.comm`
"""

_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)", re.DOTALL)
_FORMATS = ("csv", "json", "parquet")
_MOST_GB, _MOST_S = 1e5, 1e7
_SLACK_BYTES = 500_000_000
_LONGEST_PATH = 1024


def sql(
    given: statements.RunsAndStatement,
    file: statements.StatementFile = None,
    rows: selection.Rows = 30,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    as_parquet: statements.AsParquet = False,
    output: statements.ResultFile = None,
    force: statements.Overwrite = False,
    memory: statements.Memory = 2.0,
    seconds: statements.Seconds = 600.0,
    workers: processes.AnalysisWorkers = None,
) -> None:
    """Answer a question in SQL, read-only, or list the tables that can be asked.

    The dialect is DuckDB's. Times are in nanoseconds and sizes in bytes; an unknown number is
    NULL, and a text that is unknown or does not apply is empty. A statement reads no file, loads
    nothing and changes nothing, and ends at its limits of memory and time.
    """
    from commtrace.analyze.sql import Limits

    paths, statement = _parsed(given, file)
    if not (0 < memory <= _MOST_GB and 0 < seconds <= _MOST_S):
        raise UsageError(
            f"cannot use {memory:g} GB and {seconds:g} s as limits",
            why=f"the largest limits are {_MOST_GB:g} GB and {_MOST_S:g} s",
        )
    if statement is None:
        if as_json or as_csv or as_parquet or output is not None:
            raise UsageError("cannot write an answer", found="no statement", attempt="a statement")
        _list(paths)
        return
    to = _format(output, as_json=as_json, as_csv=as_csv, as_parquet=as_parquet)
    if output is not None:
        check_output(output, force=force, read=[*paths.values()])
    runs = {name: load_run(path, workers) for name, path in paths.items()}
    say_replayed(*runs.values())
    found = _answered(runs, statement, Limits(int(memory * 1e9), seconds=seconds))
    if output is not None:
        _write(found, output, to, statement)
        finish([output], then=["commtrace", "summary", next(iter(paths.values()))])
    elif to == "csv":
        write_csv(found)
    elif to == "json":
        write(_as_json(found, statement))
    else:
        _print(found, rows)


def _answered(runs: Mapping[str, Frames], statement: str, limits: Any) -> pd.DataFrame:
    from commtrace.analyze.sql import Database

    def end() -> None:
        fail(
            UsageError(
                "cannot finish the statement",
                found=f"a function that goes on after {limits.seconds:g} s",
                attempt="shorter texts and lists",
            )
        )
        os._exit(UsageError.exit_code)

    with working("asking"), Database(runs, limits, when_stuck=end) as database:
        # The engine does not count memory that functions allocate.
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = _used_bytes() + 2 * limits.memory_bytes + _SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (_least(most, soft, hard), hard))
        try:
            return database.query(statement)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _least(*limits: int) -> int:
    """Return the least of some limits of the system."""
    return min(each for each in limits if each != resource.RLIM_INFINITY)


def _used_bytes() -> int:
    """Return the private memory of this process that counts for its limit."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _parsed(given: list[str], file: Path | None) -> tuple[dict[str, Path], str | None]:
    """Return the runs by name, and the statement; None if tables are to be listed."""
    words, statement = [*given], None
    if file is not None:
        try:
            statement = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read {file}", found=str(error), attempt="a file with a single statement"
            ) from None
        if len(words) > 1 and _is_statement(words[-1]):
            raise UsageError(
                "cannot run two statements", found=f"{file} and {words[-1]}", attempt="one of them"
            )
    elif len(words) > 1 and _is_statement(words[-1]):
        statement = words.pop()
    elif len(words) == 1 and " " in words[0].strip() and not _exists(words[0]):
        raise UsageError(
            f"cannot run {words[0][:80]}", found="no run", attempt="`commtrace sql RUN STATEMENT`"
        )
    paths: dict[str, Path] = {}
    for word in words:
        named = None if Path(word).exists() else _NAMED.fullmatch(word)
        name, path = (named[1], named[2]) if named else ("", word)
        if name.lower() in {each.lower() for each in paths} or (not name and len(words) > 1):
            raise UsageError(
                f"cannot tell the runs {', '.join(words)} apart",
                why="tables of several runs are named NAME.table",
                attempt="a name for each: `commtrace sql a=one.json b=two.json STATEMENT`",
            )
        paths[name] = Path(path)
    return paths, statement


def _is_statement(word: str) -> bool:
    """Return whether a word is no run: neither a path that exists, nor NAME=PATH."""
    return not _exists(word) and not (_NAMED.fullmatch(word) and " " not in word.strip())


def _exists(word: str) -> bool:
    """Return whether a word is a path that exists, maybe behind a name."""
    named = _NAMED.fullmatch(word)
    return any(
        len(each) < _LONGEST_PATH and Path(each).exists()
        for each in (word, *(named.groups()[1:] if named else ()))
    )


def _format(output: Path | None, *, as_json: bool, as_csv: bool, as_parquet: bool) -> str:
    """Return the format of the result: one of `_FORMATS`, or empty for a table for people."""
    asked = [
        name
        for name, is_asked in zip(_FORMATS, (as_csv, as_json, as_parquet), strict=True)
        if is_asked
    ]
    if len(asked) > 1:
        raise UsageError(f"cannot write {' and '.join(asked)} at once", attempt="one of them")
    if output is None and as_parquet:
        raise UsageError("cannot print Parquet", attempt="-o FILE")
    suffix = "" if output is None else output.suffix.removeprefix(".").lower()
    if output is not None and not asked and suffix not in _FORMATS:
        raise UsageError(
            f"cannot tell the format of {output}",
            found=f"the suffix {suffix!r}" if suffix else "no suffix",
            attempt="a file .csv, .json or .parquet, or --csv, --json or --parquet",
        )
    return asked[0] if asked else suffix


def _write(found: pd.DataFrame, path: Path, to: str, statement: str) -> None:
    from commtrace.analyze.sql import write_parquet
    from commtrace.exporters.spreadsheet import csv_text

    with atomic_write(path) as target:
        if to == "parquet":
            write_parquet(found, target)
        else:
            text = csv_text(found) if to == "csv" else _as_json(found, statement)
            target.write_text(text, encoding="utf-8")


def _as_json(found: pd.DataFrame, statement: str) -> str:
    written = {"statement": statement, "columns": [*found], "rows": records(found)}
    return json.dumps(written, indent=1, default=_jsonable) + "\n"


def _jsonable(value: Any) -> Any:
    """Return lists as lists, bytes in hexadecimal digits, and others as text."""
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _print(found: pd.DataFrame, rows: int) -> None:
    console = data_console()
    if found.empty:
        console.print(Text("no rows"))
        return
    shown = found.head(rows)
    numbers = {name for name in shown if shown[name].dtype.kind in "iuf"}
    drawn = fitted(
        {name: name for name in shown},
        {name: [_text(each) for each in shown[name].astype(object)] for name in shown},
        width=console.width,
        numbers=numbers,
    )
    console.print(drawn.table)
    if len(shown) < len(found):
        console.print(
            Text(f"{len(found) - len(shown)} more rows: --rows {len(found)}", style="dim")
        )
    if text := omissions(drawn.left_out, drawn.num_truncated, "with --csv"):
        console.print(Text(text, style="dim"))


def _text(value: Any) -> str:
    import pandas as pd

    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "unknown"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _list(paths: Mapping[str, Path]) -> None:
    """Print the tables and columns that every run has, maybe without rows."""
    from commtrace.analyze.sql import SQL_TABLES

    for path in paths.values():
        load_run(path)
    console = data_console()
    if "" not in paths:
        names = " and ".join(f"{name}.TABLE" for name in paths)
        console.print(Text(f"Tables are {names}.", style="dim"))
    for table in SQL_TABLES.values():
        console.print(Text.assemble((table.name, "bold"), f"  {table.about}"))
        listed = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
        listed.add_column(no_wrap=True)
        listed.add_column(style="dim", no_wrap=True)
        listed.add_column()
        for column in table.columns:
            listed.add_row(
                Text(column.name), Text(column.unit or column.type.__name__), Text(column.meaning)
            )
        console.print(listed)
