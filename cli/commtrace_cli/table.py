"""`commtrace table`: any table of the catalog, in the terminal or for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from commtrace.errors import unknown_name
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.fitting import Fitted, omissions
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import inputs, printing, processes, selection
from commtrace_cli.tables import measures_table, plain_table, truncated, with_relative_files
from commtrace_cli.terminal import Text, data_console, finish

if TYPE_CHECKING:
    from commtrace.analyze import Analysis, Frames

EXAMPLE = """
Examples:

- `commtrace table run.json` lists the tables
- `commtrace table run.json wait_states`
- `commtrace table run.json by_source --csv > lines.csv`
"""


OF_EVERY_RUN = ("facts",)
"""Tables that are shown even for a run without communication."""


def table(
    trace: inputs.Trace,
    name: selection.TableName = None,
    rows: selection.Rows = 30,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    workers: processes.AnalysisWorkers = None,
    dask: processes.Dask = None,
) -> None:
    """Print a table of a run, or list all tables with the questions that they answer.

    Notes above the table report data that the trace lacks. `--json` and `--csv` print exact numbers
    in bytes and nanoseconds, all rows and all columns; `--json` also the meaning of each column.
    """
    from commtrace.analyze import CATALOG, analysis_named

    if name is None:
        _list(CATALOG)
        return
    analysis = analysis_named(name)
    if analysis is None:
        raise unknown_name("table", name, CATALOG)
    frames = load_run(trace, workers, dask)
    full = analysis.function(frames)
    if as_csv:
        write_csv(full)
    elif as_json:
        write_json(frames.run, {analysis: full})
    elif name in OF_EVERY_RUN or _has_own(frames, analysis) or not is_silent(frames, trace):
        _print(frames, analysis, full, rows)
        finish([], then=["commtrace", "report", trace])


def _has_own(frames: Frames, analysis: Analysis) -> bool:
    """Return whether a run has the table of the schema that an analysis is about."""
    return bool(analysis.needs) and len(getattr(frames, analysis.needs)) > 0


def _list(catalog: dict[str, Analysis]) -> None:
    console = data_console()
    listed = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    listed.add_column("name", no_wrap=True)
    listed.add_column("question")
    for name, analysis in catalog.items():
        listed.add_row(Text(name), Text(analysis.question))
    console.print(listed)


def _print(frames: Frames, analysis: Analysis, full: object, rows: int) -> None:
    import pandas as pd

    from commtrace.analyze import notices_of

    assert isinstance(full, pd.DataFrame)
    console = data_console()
    console.print(Text(analysis.question, style="dim"))
    for notice in notices_of(frames, analysis.name):
        console.print(Text(f"note: {notice.text}", style="yellow"))
    if full.empty:
        console.print(Text("no rows"))
        return
    shown = with_relative_files(frames, truncated(full, rows))
    drawn = _drawn(console.width, frames, analysis, shown)
    console.print(drawn.table)
    if len(shown) < len(full):
        hidden = len(full) - len(shown)
        console.print(Text(f"{hidden} more rows: --rows {len(full)}", style="dim"))
    if text := omissions(drawn.left_out, drawn.num_truncated, "with --csv"):
        console.print(Text(text, style="dim"))


def _drawn(width: int, frames: Frames, analysis: Analysis, shown: object) -> Fitted:
    import pandas as pd

    from commtrace.analyze.measures.measures import MEASURES

    assert isinstance(shown, pd.DataFrame)
    num_ranks = max(frames.num_ranks, 1)
    if set(MEASURES) <= set(analysis.columns):
        return measures_table(width, analysis, shown, num_ranks)
    return plain_table(width, analysis, shown, frames.start_ns, num_ranks=num_ranks)
