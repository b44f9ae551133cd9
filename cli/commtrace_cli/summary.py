"""`commtrace summary`: tables of a trace, in the terminal or for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.errors import UsageError
from commtrace.units import counted
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.fitting import omissions
from commtrace_cli.headline import headline_facts, print_headline
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import inputs, printing, processes, selection
from commtrace_cli.selecting import part_of, selection_of
from commtrace_cli.tables import measures_table, truncated, with_relative_files
from commtrace_cli.terminal import Text, data_console, finish

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from commtrace.analyze import Analysis, Frames

EXAMPLE = """
Examples:

- `commtrace summary run.json`
- `commtrace summary run.json --steps 3:9`
- `commtrace summary run.json --by module --rows 100`
- `commtrace summary run.json --by kind --csv > kinds.csv`
"""


def summary(
    trace: inputs.Trace,
    by: selection.Groupings = None,
    rows: selection.Rows = 30,
    steps: selection.Steps = None,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    workers: processes.AnalysisWorkers = None,
    dask: processes.Dask = None,
) -> None:
    """Summarize a run: what its steps are lost to, what helps, and its communication.

    Tables by kind, phase, module, operator and source line follow, except those that repeat
    another; equal layers share a row. `--by` prints single tables. Numbers are means per rank.
    `blocked` is exposed communication, in which the rank cannot do anything else; `sent` is the
    number of bytes sent under the ring algorithm. `--json` and `--csv` print exact numbers in bytes
    and nanoseconds.
    """
    if as_csv and len(by or ()) != 1:
        raise UsageError(
            "cannot print several tables as CSV",
            why="their columns differ",
            attempt="one of them: --csv --by module, or all of them: --json",
        )
    selected = selection_of(steps=steps)
    frames = part_of(load_run(trace, workers, dask), selected)
    from commtrace.analyze import CATALOG

    analyses = [CATALOG[f"by_{each.value}"] for each in by or _TABLES]
    if as_csv:
        write_csv(analyses[0].function(frames))
    elif as_json:
        tables = {each: each.function(frames) for each in analyses}
        write_json(frames.run, tables, **({} if by else headline_facts(frames)))
    elif not is_silent(frames, trace):
        from commtrace.analyze.run.program_folder import name_of

        console = data_console()
        console.print(Text(name_of(frames), style="bold"))
        following = [] if by else print_headline(console, frames, selected, trace)
        _print(console, frames, analyses, rows, is_whole=by is None)
        finish([], then=following or ["commtrace", "report", trace])


_TABLES = tuple(selection.Grouping)


def _print(
    console: Console, frames: Frames, analyses: list[Analysis], rows: int, *, is_whole: bool
) -> None:
    from commtrace.analyze import notices_of

    console.print(Text(_size_of(frames)))
    console.print(Text("Numbers are per rank: the mean over ranks.", style="dim"))
    tables = {each: each.function(frames) for each in analyses}
    if is_whole:
        tables = _telling(tables)
    for notice in notices_of(frames):
        if not notice.is_minor:
            console.print(Text(f"note: {notice.text}", style="yellow"))
    left_out: list[str] = []
    num_truncated = 0
    for analysis, full in tables.items():
        shown = truncated(full, rows)
        shown = with_relative_files(frames, shown)
        drawn = measures_table(console.width, analysis, shown, max(frames.num_ranks, 1))
        console.print()
        console.print(drawn.table)
        if len(shown) < len(full):
            hidden = len(full) - len(shown)
            console.print(Text(f"{hidden} more rows: --rows {len(full)}", style="dim"))
        left_out += [heading for heading in drawn.left_out if heading not in left_out]
        num_truncated += drawn.num_truncated
    if left_out or num_truncated:
        console.print()
        console.print(
            Text(omissions(left_out, num_truncated, "with --csv --by TABLE"), style="dim")
        )


def _telling(tables: dict[Analysis, pd.DataFrame]) -> dict[Analysis, pd.DataFrame]:
    """Return the tables that say more than those before them, with equal layers as one row."""
    by = {analysis.name: analysis for analysis in tables}
    kinds, modules = tables[by["by_kind"]], tables[by["by_module"]]
    has_modules = bool((modules["depth"] > 0).any())
    says_more = {
        "by_phase": len(tables[by["by_phase"]]) > 1,
        "by_module": has_modules,
        "by_op": len(tables[by["by_op"]]) > len(kinds),
        "by_source": not has_modules and bool(tables[by["by_source"]]["source_file"].any()),
    }
    from commtrace.analyze.traffic.folded_modules import folded_modules

    return {
        analysis: folded_modules(table) if analysis.name == "by_module" else table
        for analysis, table in tables.items()
        if says_more.get(analysis.name, True)
    }


def _size_of(frames: Frames) -> str:
    from commtrace.analyze import CATALOG
    from commtrace.analyze.measures.steady_steps import left_out_text

    facts = dict(CATALOG["facts"].function(frames).itertuples(index=False))
    parts = (
        counted(int(facts["ranks recorded"]), "rank"),
        counted(int(facts["steps"]), "step"),
        left_out_text(frames),
        str(facts["recorded time"]),
        _calls(frames),
    )
    return ", ".join(filter(None, parts))


def _calls(frames: Frames) -> str:
    """Return the number of calls per rank, to which the tables below add up, and in total."""
    num_calls, num_ranks = frames.num_calls, max(frames.num_ranks, 1)
    if num_ranks == 1:
        return counted(num_calls, "communication call")
    from commtrace.analyze.measures.census import census

    each = census(frames).ranks.values()
    if len(each) == num_ranks and min(each) == max(each):
        per_rank = counted(max(each), "communication call")
        return f"{per_rank} per rank ({num_calls:,} in all)"
    in_all = counted(num_calls, "communication call")
    lowest = min(each) if len(each) == num_ranks else 0
    return f"{in_all} in all, {lowest:,} to {max(each):,} per rank"
