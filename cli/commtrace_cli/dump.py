"""`commtrace dump`: recorded rows of a trace's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.errors import UsageError, unknown_name
from commtrace.schema import TABLES
from commtrace.tracefile import open_run
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.fitting import omissions
from commtrace_cli.growing import read_run
from commtrace_cli.loading import say_replayed
from commtrace_cli.options import inputs, printing, selection
from commtrace_cli.tables import plain_table
from commtrace_cli.terminal import Text, data_console, finish, working

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Analysis, Frames

EXAMPLE = """
Examples:

- `commtrace dump run.json comm --where kind=all_reduce --where 'payload_bytes>1000'`
- `commtrace dump run.json comm --columns rank,id,kind,reason --limit 10`
- `commtrace dump run.json ranks --json`
"""

SHOWN_ROWS = 30


def dump(
    trace: inputs.Trace,
    table: selection.RawTable,
    where: selection.Where = None,
    columns: selection.Columns = None,
    limit: selection.Limit = None,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
) -> None:
    """Print rows of a trace's recorded tables, such as comm, ops or ranks.

    docs/trace-format.md documents the columns. An unknown value is -1 or empty. `--json` and
    `--csv` print all rows and columns, or those selected.
    """
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    with working(f"reading {trace}"):
        from commtrace.analyze import Analysis, load
        from commtrace.analyze.run.select import hints, select

        frames = load(open_run(trace, read=read_run))
    say_replayed(frames)
    names = [name.strip() for text in columns or () for name in text.split(",") if name.strip()]

    def chosen_rows(frames: Frames) -> pd.DataFrame:
        return select(getattr(frames, table), TABLES[table], where=where or (), columns=names)

    rows = chosen_rows(frames)
    by_name = {column.name: column for column in TABLES[table]}
    columns_of = tuple(by_name[name] for name in rows.columns)
    of_table = Analysis(table, "", "", chosen_rows, columns_of)
    if rows.empty and (found := hints(getattr(frames, table), TABLES[table], where or ())):
        raise UsageError(f"no row of {table}", found="; ".join(found), attempt="another value")
    limited = rows if limit is None else rows.head(limit)
    if as_csv:
        write_csv(limited)
    elif as_json:
        write_json(frames.run, {of_table: limited})
    else:
        _print(frames, of_table, limited, len(rows), limit or SHOWN_ROWS)
        finish([], then=["commtrace", "table", trace])


def _print(frames: Frames, table: Analysis, rows: pd.DataFrame, num_found: int, most: int) -> None:
    console = data_console()
    num_all = len(getattr(frames, table.name))
    console.print(Text(f"{num_found:,} of {num_all:,} rows of {table.name}", style="bold"))
    if rows.empty:
        return
    shown = rows.head(most)
    drawn = plain_table(console.width, table, shown, frames.start_ns, title=False)
    console.print(drawn.table)
    if len(shown) < num_found:
        console.print(Text(f"{num_found - len(shown):,} more: --limit {num_found}", style="dim"))
    if text := omissions(drawn.left_out, drawn.num_truncated, "with --columns or --csv"):
        console.print(Text(text, style="dim"))
