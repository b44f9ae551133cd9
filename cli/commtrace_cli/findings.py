"""`commtrace findings`: possible improvements of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.padding import Padding

from commtrace.errors import unknown_name
from commtrace.settings import FORMER_RULES
from commtrace.units import counted
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.loading import is_silent, load_run, say_replayed
from commtrace_cli.options import criteria, inputs, printing, processes, selection
from commtrace_cli.selecting import part_of, selection_of
from commtrace_cli.terminal import Text, data_console, finish, say

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from commtrace.analyze import Frames

EXAMPLE = """
Examples:

- `commtrace findings run.json`
- `commtrace findings run.json --steps 3:9`
- `commtrace findings run.json --rows 3`
- `commtrace findings run.json --json > findings.json`
- `commtrace findings run.json --fail-on repeated_reduction --fail-on repeated_all_gather`

Mute intended findings, each with its reason, and set thresholds in `[tool.commtrace]` of
pyproject.toml.

Exit codes: `0` no finding of a rule named by `--fail-on`, `1` a finding of such a rule, `2` a usage
error, `3` the trace cannot be read.
"""

ANY = "any"
FOUND = 1


def findings(
    trace: inputs.Trace,
    rows: selection.Rows = 30,
    steps: selection.Steps = None,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    fail_on: criteria.FailOn = None,
    workers: processes.AnalysisWorkers = None,
    dask: processes.Dask = None,
) -> None:
    """Print possible improvements of a run, with their savings and advice.

    The run is replayed with the change that each finding names. Its saving is the time by which all
    steps become shorter, as the mean over ranks. Findings that repeat at the same line are reported
    once, and replayed together; `--json` and `--csv` have each. Rules that could not be
    evaluated, because the trace lacks data, are listed at the end, and under `unanswered` of
    `--json`.
    """
    chosen = selection_of(steps=steps)
    frames = part_of(load_run(trace, workers, dask), chosen)
    from commtrace.analyze import CATALOG
    from commtrace.analyze.findings import by_missing_data, grouped, muted, unanswered

    say_replayed(frames)
    guarded = [FORMER_RULES.get(name, name) for name in fail_on or ()]
    failing = _rules(guarded)
    analysis = CATALOG["findings"]
    table = analysis.function(frames)
    lacking = unanswered(frames)
    if as_csv:
        write_csv(table)
    elif as_json:
        left_out = [
            {"rule": rule, "reason": reason, "num_findings": num}
            for (rule, reason), num in muted(frames).items()
        ]
        write_json(frames.run, {analysis: table}, unanswered=lacking, muted=left_out)
    elif not is_silent(frames, trace):
        _print(frames, grouped(frames), rows, by_missing_data(lacking))
        _print_muted(muted(frames), frames.settings.path)
        finish([], then=["commtrace", *_following(table, trace)])
    for name in sorted(set(guarded) & lacking.keys()):
        say(f"note: {name} could not be evaluated: {lacking[name]}", always=True)
    if failing & set(table["rule"]):
        raise typer.Exit(FOUND)


def _rules(names: Sequence[str]) -> set[str]:
    """Return the named rules; all of them for `any`.

    Raises:
        UsageError: a name is not a rule.
    """
    from commtrace.analyze.findings import RULES

    known = {rule.name for rule in RULES}
    for name in names:
        if name not in (ANY, *known):
            raise unknown_name("rule", name, (ANY, *sorted(known)))
    return known if ANY in names else set(names)


def _print_muted(counts: Mapping[tuple[str, str], int], path: Path | None) -> None:
    console = data_console()
    for (rule, reason), num in counts.items():
        console.print()
        each = f"{num} finding{'' if num == 1 else 's'} of {rule}"
        console.print(Text.assemble((f"muted: {each}. ", "dim"), f"{reason} ({path})"))


def _following(table: pd.DataFrame, trace: Path) -> list[str]:
    """Return the suggested next command: the first finding's first call, or else the report."""
    evidence = "" if table.empty else str(table["evidence"].iloc[0])
    first = evidence.partition(",")[0]
    return ["explain", str(trace), first] if first else ["report", str(trace)]


def _print(
    frames: Frames, table: pd.DataFrame, rows: int, open_questions: Mapping[str, Sequence[str]]
) -> None:
    from commtrace.analyze.findings import evaluated_note
    from commtrace.analyze.measures.steady_steps import left_out_text

    console = data_console()
    console.print(Text(counted(len(table), "finding"), style="bold"))
    if len(table) and (left_out := left_out_text(frames)):
        console.print(Text(f"Savings refer to steady steps: {left_out}.", style="dim"))
    note = evaluated_note(frames)
    if table.empty and note:
        console.print(Text(note, style="dim"))
    for row in table.head(rows).to_dict("records"):
        _print_one(console, frames, row)
    if len(table) > rows:
        console.print()
        console.print(Text(f"{len(table) - rows} more: --rows {len(table)}", style="dim"))
    for lack, names in open_questions.items():
        console.print()
        console.print(Text.assemble((f"not evaluated: {', '.join(names)}. ", "yellow"), lack))


def _print_one(console: Console, frames: Frames, row: Mapping[Any, Any]) -> None:
    from commtrace.analyze.findings.table_rows import savings, share_text

    of_time = "of the steps" if len(frames.steps) else "of the run"
    saved = savings(row, max(frames.num_ranks, 1), share_text(row, of_time))
    saves = f"  could save {saved}" if saved else ""
    console.print()
    console.print(Text.assemble((row["rule"], "bold yellow"), saves))
    for text, style in (
        (row["title"], ""),
        (row["advice"], "green"),
        (f"replayed: {row['change']}" if row["change"] else "", "dim"),
        (f"at {row['source']}" if row["source"] else "", "dim"),
    ):
        if text:
            console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False))
