"""Write docs/trace-format.md: the columns of every table, from `commtrace.schema`.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commtrace.schema import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MAX_RANKS,
    MOST_INSTANT_NS,
    TABLES,
    Column,
)
from commtrace.tracefile.sources import MARGIN, MAX_CHARACTERS

TARGET = Path(__file__).with_name("trace-format.md")

ABOUT = f"""\
# The trace format

Written by `make docs` from `commtrace/schema.py`: change the schema, not this file.

A finished run is one JSON file, version {FORMAT_VERSION} of the format `{FORMAT_NAME}`:

    {{"format": "{FORMAT_NAME}", "version": {FORMAT_VERSION}, "run": {{facts}},
     "strings": [each string once],
     "tables": {{"comm": {{"rows": n, "columns": {{"rank": column, ...}}}}, ...}}}}

`commtrace/tracefile/run_file.py` says how a column is stored, `encoding.py` how its bytes are
packed, `spool.py` what a rank writes while it records. `commtrace.read_trace(path)` gives the
tables below without torch or pandas, `commtrace.load(path)` gives them as DataFrames. Every table
and every column is always there, a table perhaps without rows.

Files of older versions stay readable; a column that they did not have yet holds its missing value,
a table that they did not have has no rows. Readers ignore tables that they do not know, so a table
may be added without a new version: `sources` was, and files of version 3 may lack it. It holds the
lines that communicate and {MARGIN} lines on each side, at most {MAX_CHARACTERS:,} characters.
A file of a newer version is refused, and the message names both versions.

## What is refused

No file is believed about how much it holds. Its contents may take 64 MiB of memory and 100 times
the size of the file, 4 GiB at most; a file that claims more rows, or inflates to more, is refused
before that memory is asked for. `COMMTRACE_READ_LIMIT=16GiB` in the environment replaces this
limit, for files that you trust. Ranks are below {MAX_RANKS:,}. Only regular files are read: no
pipes, devices or sockets, also not in folders of spools. This holds for everything that is read:
run files, spools, files to import, and the baselines of the pytest plugin.

A trace is checked against the tables below once, when it is read: integers lie between the bounds
of their column (by unit: a time is in 0 to {MOST_INSTANT_NS}, a duration is not negative), ids
are unique on a rank, no end comes before its beginning, groups and ranks are known. All columns
that differ are named in one error. Whatever goes wrong in reading ends a command with exit code 3
and leaves its output as it was; `make fuzz` checks that.
"""

TITLES = {
    "comm": "a row per communication call of a rank",
    "ops": 'a row per operator that a rank ran (recorded with `detail="op"`)',
    "groups": "a row per process group",
    "ranks": "a row per recorded rank",
    "steps": "a row per step of a rank",
    "sources": "a row per stretch of source lines, as they were when they ran",
}


def missing_text(column: Column) -> str:
    """Format the placeholder of a column for "not known"."""
    return '`""`' if column.type is str else f"`{column.missing}`"


def escaped(cell: str) -> str:
    """Escape pipes, so that a cell cannot end its own column."""
    return cell.replace("|", "\\|")


def table_lines(columns: Iterable[Column]) -> list[str]:
    """Format a Markdown table of columns."""
    rows = [
        (
            f"`{column.name}`",
            column.type.__name__,
            column.unit,
            missing_text(column),
            str(column.since),
            escaped(column.meaning),
        )
        for column in columns
    ]
    header = ("column", "type", "unit", "missing", "since", "meaning")
    return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]


def render() -> str:
    """Render the whole document."""
    parts = [ABOUT]
    for name, columns in TABLES.items():
        parts.append("\n".join([f"## `{name}`: {TITLES[name]}", "", *table_lines(columns), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
