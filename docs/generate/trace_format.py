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

TARGET = Path(__file__).parents[1] / "trace-format.md"

ABOUT = f"""\
# The trace format

Written by `make docs` from `commtrace/schema.py`: change the schema, not this file.

A finished run is one JSON file, version {FORMAT_VERSION} of the format `{FORMAT_NAME}`:

    {{"format": "{FORMAT_NAME}", "version": {FORMAT_VERSION}, "run": {{facts}},
     "strings": [each string once],
     "tables": {{"comm": {{"rows": n, "columns": {{"rank": column, ...}}}}, ...}},
     "crc32": "5fb1d7e3"}}

The checksum is the last of its values, and of all bytes before its comma. A file that differs from
it is rejected; one that has none, as of older versions, is read, as is one that another program has
written anew with blanks between its values.

`commtrace/tracefile/run_file.py` documents how a column is stored, `encoding.py` how its bytes are
packed, and `spool.py` the file that a rank writes while it records. `commtrace.read_trace(path)`
returns the tables below without torch or pandas, `commtrace.load(path)` returns them as
DataFrames. Every table and column is always present; a table may have no rows.

Files of older versions stay readable. A column that a file lacks holds its missing value, and a
table that it lacks has no rows. Readers ignore unknown tables, so a table can be added without a
new version. Table `sources` was added in this way, and files of version 3 may lack it. It holds
the source lines that communicate and {MARGIN} lines on each side, and the functions around them,
at most {MAX_CHARACTERS:,} characters. A file of a newer version is rejected; the message names both
versions.

## Validation

A file's claims about its size are not trusted. Its contents may take 64 MiB of memory plus 200
times the size of the file, 4 GiB at most. A file that claims more rows, or inflates to more, is
rejected before that memory is allocated. `COMMTRACE_READ_LIMIT=16GiB` in the environment replaces
this limit, for trusted files. Ranks are below {MAX_RANKS:,}. Only regular files are read: no pipes,
devices or sockets, including in folders of spools. These rules apply to all input files: run files,
spools, files to import, and the baselines of the pytest plugin.

A trace is validated against the tables below once, when it is read. Integers are within the bounds
of their column (by unit: a time is in 0 to {MOST_INSTANT_NS}, a duration is not negative), ids are
unique on a rank, no end precedes its beginning, and groups and ranks exist. One error lists all
invalid columns. Any error in reading ends a command with exit code 3 and leaves its output
unchanged; `make fuzz` tests this.
"""

TITLES = {
    "comm": "a row per communication call of a rank",
    "ops": 'a row per operator that a rank ran (recorded with `detail="op"`)',
    "kernels": "a row per kernel or copy on a device, from imported profiles",
    "fingerprints": "a row per observed tensor of a rank (recorded with `values`)",
    "host_events": "a row per event on the host of a rank",
    "pipeline_actions": "a row per computation of a pipeline stage on a micro-batch",
    "later_waits": "a row per further wait for a call that has been waited for before",
    "syncs": "a row per event of a stream, or wait for a device, from imported profiles",
    "communicators": "a row per snapshot, member of a communicator and kind of call",
    "removed_calls": "a row per group of a rank whose first calls a ring has replaced",
    "groups": "a row per process group",
    "ranks": "a row per recorded rank",
    "steps": "a row per step of a rank",
    "sources": "a row per range of source lines, as of the time of recording",
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
    """Render the document."""
    parts = [ABOUT]
    for name, columns in TABLES.items():
        parts.append("\n".join([f"## `{name}`: {TITLES[name]}", "", *table_lines(columns), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
