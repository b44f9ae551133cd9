"""`commtrace diff`: what changed from one run to another; it can fail where something grew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from commtrace.units import text_of_value
from commtrace_cli import options
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.loading import load_events
from commtrace_cli.tables import plain_table
from commtrace_cli.terminal import Text, data_console, finish, say

if TYPE_CHECKING:
    import pandas as pd

EXAMPLE = """
Examples:

- `commtrace diff before.json after.json`
- `commtrace diff main.json branch.json --fail-on-increase calls --fail-on-increase bytes`
- `commtrace diff main.json branch.json --fail-on-increase time --tolerance 0.1`

Exit codes: `0` done, `1` something grew that must not, `2` the command cannot be met, `3` a trace
cannot be read.
"""

_TOTALS = (("calls", "", "calls"), ("wire_bytes", "bytes", "sent"), ("blocked_ns", "ns", "blocked"))

LEAST_PART = 0.005
"""What is less would be told as no percent."""

GREW = 1


def diff(
    before: options.Before,
    after: options.After,
    fail_on_increase: options.FailOnIncrease = None,
    tolerance: options.Tolerance = 0.0,
    rows: options.Rows = 30,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Compare two runs by module, operator, kind, group and phase.

    Told is what was added, removed and changed in calls and bytes; numbers are what one rank does,
    per step where both runs mark steps. `--fail-on-increase` looks at the sum over all places:
    calls, bytes (on the wire, as a ring) or time (blocked).
    """
    runs = load_events(before), load_events(after)
    from commtrace.analyze.diff import DIFF, METRICS, differences_of_runs, increases
    from commtrace.analyze.diff import diff as compare

    table = compare(*runs)
    if as_csv:
        write_csv(table)
    elif as_json:
        write_json(runs[1].run, {DIFF: table})
    else:
        _print(table, rows, differences_of_runs(*runs))
        finish([], then=["commtrace", "report", after])
    failed = False
    for metric in fail_on_increase or ():
        for scope, (old, new) in increases(table, metric.value, tolerance).items():
            unit = {"calls": "", "bytes": "bytes", "time": "ns"}[metric.value]
            texts = [text_of_value(value, unit) for value in (old, new, new - old)]
            where = "per step" if scope == "step" else "outside of steps or over the run"
            say(
                f"{METRICS[metric.value]} grew {where}: {texts[0]} -> {texts[1]} (+{texts[2]})",
                always=True,
            )
            failed = True
    if failed:
        raise typer.Exit(GREW)


def _print(table: pd.DataFrame, rows: int, told: list[str]) -> None:
    from commtrace.analyze import Analysis
    from commtrace.analyze.diff import COLUMNS, DIFF, SAME

    console = data_console()
    for text in told:
        console.print(Text(f"note: {text}", style="yellow"))
    changes = table[table["change"] != SAME]
    if changes.empty:
        console.print(Text(f"no difference in {len(table)} places that communicate", style="bold"))
        return
    counts = changes["change"].value_counts()
    summary = ", ".join(f"{num} {change}" for change, num in counts.items())
    console.print(Text(f"{summary}, {len(table) - len(changes)} the same", style="bold"))
    for line in _totals(table):
        console.print(line)
    names = (
        "change",
        "module",
        "kind",
        "calls_change",
        "wire_bytes_change",
        "phase",
        "op",
        "group",
    )
    names += ("blocked_ns_change", "calls_before", "calls_after", "wire_bytes_before")
    by_name = {column.name: column for column in COLUMNS}
    few = tuple(by_name[name] for name in (*names, "wire_bytes_after"))
    shown = Analysis(DIFF.name, DIFF.title, DIFF.question, DIFF.function, few)
    drawn, left_out = plain_table(console, shown, changes.head(rows), 0)
    console.print(drawn)
    if len(changes) > rows:
        console.print(Text(f"{len(changes) - rows} more: --rows {len(changes)}", style="dim"))
    if left_out:
        console.print(
            Text(f"in a wider terminal or with --csv: {', '.join(left_out)}", style="dim")
        )


def _totals(table: pd.DataFrame) -> Iterator[Text]:
    """What changed in all, in steps and outside of them: calls, bytes sent and time blocked."""
    sums = table.groupby("scope").sum(numeric_only=True).sort_index(ascending=False)
    for scope, row in sums.iterrows():
        parts = []
        for name, unit, what in _TOTALS:
            old, new = row[f"{name}_before"], row[f"{name}_after"]
            part = new / old - 1 if old else 0.0
            change = f" ({part:+.0%})" if abs(part) >= LEAST_PART else ""
            texts = (text_of_value(old, unit), text_of_value(new, unit))
            parts.append(f"{' -> '.join(texts)} {what}{change}")
        where = "in a step" if scope == "step" else "outside of steps"
        yield Text(f"{where if len(sums) > 1 or scope == 'step' else 'in all'}: {', '.join(parts)}")
