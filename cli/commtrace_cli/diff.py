"""`commtrace diff`: comparison of runs with a baseline; can fail on an increase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from commtrace.errors import UsageError
from commtrace.units import counted, known_note, text_of_value
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.fitting import fitted, omissions
from commtrace_cli.loading import load_run
from commtrace_cli.markdown import markdown
from commtrace_cli.options import criteria, inputs, outputs, printing, selection
from commtrace_cli.tables import plain_table
from commtrace_cli.terminal import Text, check_output, data_console, finish, say, working, write

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Frames
    from commtrace.analyze.comparisons.growth import Grown

EXAMPLE = """
Examples:

- `commtrace diff before.json after.json`
- `commtrace diff main.json branch.json other.json -o diff.html`
- `commtrace diff main.json branch.json --fail-on-increase calls --fail-on-increase bytes`
- `commtrace diff main.json branch.json --fail-on-increase time --tolerance 0.1`
- `commtrace diff main.json branch.json --markdown >> "$GITHUB_STEP_SUMMARY"`

Exit codes: `0` success, `1` a guarded metric grew in a run, `2` a usage error, or a
guarded metric is unknown, `3` a trace cannot be read.
"""

_TOTALS = (("calls", "", "calls"), ("wire_bytes", "bytes", "sent"), ("blocked_ns", "ns", "blocked"))

LEAST_PART = 0.005
"""Smaller changes would be printed as 0%."""

GREW = 1


def diff(
    before: inputs.Baseline,
    after: inputs.Compared,
    output: outputs.DiffOutput = None,
    force: outputs.Force = False,
    fail_on_increase: criteria.FailOnIncrease = None,
    tolerance: criteria.Tolerance = 0.0,
    rows: selection.Rows = 30,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    as_markdown: printing.AsMarkdown = False,
) -> None:
    """Compare runs with a baseline by module, operator, kind, group and phase.

    Prints added, removed and changed calls and bytes. Numbers are means per rank, and per step if
    all runs mark steps. `-o` writes a page with the growth by module, kind and line, and the flame
    graphs side by side. `--json` and `--csv` have one row per place and compared run.
    `--fail-on-increase` checks the total of calls, bytes (wire bytes of a ring) or time (blocked).
    """
    if output is not None:
        check_output(output, force=force, read=[before, *after])
    paths = [before, *after]
    runs = [load_run(path) for path in paths]
    from commtrace.report.diff_page import labels_of

    labels = labels_of(paths)
    tables = _compared(runs, labels)
    grown = list(_grown(tables, fail_on_increase or (), tolerance))
    if as_markdown:
        heads = dict(zip(tables, _headlines(runs), strict=True))
        totals = {
            label: [*heads[label], *(line.plain for line in _totals(table))]
            for label, table in tables.items()
        }
        write(markdown(labels, tables, totals, grown, rows))
    if output is not None:
        _write_page(runs, labels, output)
    elif as_csv:
        write_csv(_with_runs(tables))
    elif as_json:
        _write_json(runs, labels, tables)
    elif not as_markdown:
        _print(runs, tables, rows)
        command = ["commtrace", "diff", *paths, "-o", "diff.html"]
        finish([], then=command)
    for sentence in grown:
        say(sentence, always=True)
    if grown:
        raise typer.Exit(GREW)


def _compared(runs: Sequence[Frames], labels: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return the changes from the baseline to each later run, by that run's label."""
    from commtrace.analyze.comparisons.diff import compare_all

    return dict(zip(labels[1:], compare_all(runs), strict=True))


def _write_page(runs: Sequence[Frames], labels: Sequence[str], output: Path) -> None:
    from commtrace.report import write_diff

    with working(f"drawing {output}"):
        write_diff(runs, output, labels=labels)
    finish([output], then=["python", "-m", "webbrowser", output])


def _with_runs(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate all tables, with a column `run`."""
    import pandas as pd

    named = []
    for label, table in tables.items():
        named.append(table.assign(run=label)[["run", *table.columns]])
    return pd.concat(named, ignore_index=True)


def _write_json(
    runs: Sequence[Frames], labels: Sequence[str], tables: dict[str, pd.DataFrame]
) -> None:
    from dataclasses import replace

    from commtrace.analyze.comparisons.diff import DIFF
    from commtrace.schema import Column

    run = Column("run", str, "", "name of the run that is compared with the first")
    facts = [
        {
            "name": label,
            "path": str(frames.path or ""),
            "num_ranks": frames.num_ranks,
            "num_steps": int(frames.steps["step"].nunique()),
        }
        for frames, label in zip(runs, labels, strict=True)
    ]
    analysis = replace(DIFF, columns=(run, *DIFF.columns))
    write_json(runs[-1].run, {analysis: _with_runs(tables)}, runs=facts)


def _grown(
    tables: dict[str, pd.DataFrame], metrics: Sequence[criteria.Metric], tolerance: float
) -> Iterator[str]:
    """Yield a sentence for each guarded metric that has grown in a run."""
    from commtrace.analyze.comparisons.diff import METRICS, increases

    for label, table in tables.items():
        of_run = f" in {label}" if len(tables) > 1 else ""
        for metric in metrics:
            measure = METRICS[metric.value]
            _require_known(table, measure, metric, label)
            for scope, (old, new) in increases(table, metric.value, tolerance).items():
                unit = {"calls": "", "bytes": "bytes", "time": "ns"}[metric.value]
                texts = [text_of_value(value, unit) for value in (old, new, new - old)]
                where = "per step" if scope == "step" else "outside of steps or over the run"
                change = f"{texts[0]} -> {texts[1]} (+{texts[2]})"
                yield f"{measure} grew {where}{of_run}: {change}"


def _require_known(table: pd.DataFrame, measure: str, metric: criteria.Metric, label: str) -> None:
    """Reject a metric that no place has in both runs; print how many places lack it.

    Raises:
        UsageError: no value of the metric is known on one side, or at no place on both.
    """
    if table.empty:
        return
    summary = f"cannot determine whether {metric.value} grew"
    attempt = "another metric, or a run with that data"
    for name in (f"{measure}_before", f"{measure}_after"):
        if table[name].isna().all():
            owner = "the baseline" if name.endswith("before") else label
            found = f"no call of {owner} with a known {measure}"
            raise UsageError(summary, found=found, attempt=attempt)
    num_known = int(table[f"{measure}_change"].notna().sum())
    if not num_known:
        found = f"no place where the baseline and {label} know an equal part of {measure}"
        raise UsageError(summary, found=found, attempt=attempt)
    if note := known_note(num_known, len(table), "place"):
        say(f"note: the change of {measure} is {note}; the others are not guarded", always=True)


def _print(runs: Sequence[Frames], tables: dict[str, pd.DataFrame], rows: int) -> None:
    from commtrace.analyze.comparisons.diff import SAME, differences_of_runs

    console = data_console()
    for text in differences_of_runs(*runs):
        console.print(Text(f"note: {text}", style="yellow"))
    if all((table["change"] == SAME).all() for table in tables.values()):
        largest = max(tables.values(), key=len)
        num = len(largest)
        places = f"{counted(num, 'place')} that communicate{'s' * (num == 1)}"
        num_known = int(largest["wire_bytes_change"].notna().sum())
        note = known_note(num_known, num, "place")
        known = f"; the change of bytes sent is {note}" if note else ""
        console.print(Text(f"no difference in {places}{known}", style="bold"))
        return
    heads = _headlines(runs)
    for number, (label, table) in enumerate(tables.items()):
        if len(tables) > 1:
            console.print("\n" * bool(number), end="")
            console.print(Text(f"{label}, compared with the baseline", style="bold underline"))
        _print_counts(console, table, heads[number])
    if len(tables) == 1:
        _print_places(console, next(iter(tables.values())), rows)
    else:
        _print_growth(console, runs, list(tables), rows)


def _headlines(runs: Sequence[Frames]) -> list[list[str]]:
    """Return what each run does otherwise than the baseline, in sentences."""
    from commtrace.analyze.comparisons.sentences import headlines

    return [headlines(runs[0], other) for other in runs[1:]]


def _print_counts(console: Console, table: pd.DataFrame, heads: Sequence[str]) -> None:
    from commtrace.analyze.comparisons.diff import SAME

    changes = table[table["change"] != SAME]
    counts = changes["change"].value_counts()
    parts = [f"{num} {change}" for change, num in counts.items()]
    same = f"{len(table) - len(changes)} the same"
    console.print(Text(", ".join([*parts, same]), style="bold"))
    for line in (*map(Text, heads), *_totals(table)):
        console.print(line)


def _print_places(console: Console, table: pd.DataFrame, rows: int) -> None:
    """Print the places that changed in a run."""
    from commtrace.analyze import Analysis
    from commtrace.analyze.comparisons.diff import COLUMNS, DIFF, SAME

    changes = table[table["change"] != SAME]
    names = (
        *("change", "module", "kind", "calls_change", "wire_bytes_change", "phase", "op", "group"),
        *("blocked_ns_change", "calls_before", "calls_after", "wire_bytes_before"),
    )
    by_name = {column.name: column for column in COLUMNS}
    few = tuple(by_name[name] for name in (*names, "wire_bytes_after"))
    shown = Analysis(DIFF.name, DIFF.title, DIFF.question, DIFF.function, few)
    drawn = plain_table(console.width, shown, changes.head(rows), 0, important=names[:5])
    console.print(drawn.table)
    if len(changes) > rows:
        console.print(Text(f"{len(changes) - rows} more: --rows {len(changes)}", style="dim"))
    if text := omissions(drawn.left_out, drawn.num_truncated, "with --csv"):
        console.print(Text(text, style="dim"))


def _print_growth(
    console: Console, runs: Sequence[Frames], labels: Sequence[str], rows: int
) -> None:
    """Print the growth of several runs, by module and by kind: bytes sent and calls."""
    from commtrace.analyze.comparisons.growth import by_kind, by_module

    for noun, grown in (("module", by_module(runs)), ("kind", by_kind(runs))):
        changed = [row for row in grown if row.growth("wire_bytes") or row.growth("calls")]
        if not changed:
            continue
        drawn = fitted(
            *_columns_of_growth(noun, changed[:rows], labels),
            width=console.width,
            numbers={f"{measure} {n}" for measure, *_ in _GROWN for n in range(len(runs))},
            importance=[
                *("name", "wire_bytes 0"),
                *(f"{measure} {n}" for measure, *_ in _GROWN for n in range(1, len(runs))),
            ],
            title=f"What changed, by {noun}: the baseline, then each run's change",
        )
        console.print()
        console.print(drawn.table)
        if len(changed) > rows:
            console.print(Text(f"{len(changed) - rows} more: --rows {len(changed)}", style="dim"))
        if text := omissions(drawn.left_out, drawn.num_truncated, "with --csv or -o diff.html"):
            console.print(Text(text, style="dim"))


_GROWN = (("wire_bytes", "bytes", "sent"), ("calls", "", "calls"))


def _columns_of_growth(
    noun: str, changed: Sequence[Grown], labels: Sequence[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return headings and texts: each measure of the baseline, and its change in each run."""
    names = [
        (row.name or "(outside of modules)") + (" outside of steps" if row.scope == "run" else "")
        for row in changed
    ]
    headings, texts = {"name": noun}, {"name": [text_of_value(name, "") for name in names]}
    for measure, unit, title in _GROWN:
        headings[f"{measure} 0"] = title
        texts[f"{measure} 0"] = [text_of_value(row.values[measure][0], unit) for row in changed]
        for number, label in enumerate(labels, 1):
            headings[f"{measure} {number}"] = text_of_value(label, "")
            changes = (row.values[measure][number] - row.values[measure][0] for row in changed)
            texts[f"{measure} {number}"] = [_signed(value, unit) for value in changes]
    return headings, texts


def _signed(value: float, unit: str) -> str:
    if not math.isnan(value) and value == 0:
        return "="
    return f"{'+' if value > 0 else ''}{text_of_value(value, unit)}"


def _totals(table: pd.DataFrame) -> Iterator[Text]:
    """Yield the total changes, in steps and outside of them: calls, bytes sent, time blocked."""
    scopes = sorted(set(table["scope"]), reverse=True)
    for scope in scopes:
        rows = table[table["scope"] == scope]
        where = "in a step" if scope == "step" else "outside of steps"
        parts = [_total(rows, *total) for total in _TOTALS]
        is_named = len(scopes) > 1 or scope == "step"
        yield Text(f"{where if is_named else 'in all'}: {', '.join(parts)}")


def _total(rows: pd.DataFrame, name: str, unit: str, noun: str) -> str:
    """Format the total change of a measure, over the places where its change is known."""
    known = rows[rows[f"{name}_change"].notna()]
    note = known_note(len(known), len(rows), "place")
    if known.empty:
        return f"{noun} {note}"
    old, new = known[f"{name}_before"].sum(), known[f"{name}_after"].sum()
    part = new / old - 1 if old else 0.0
    change = f" ({part:+.0%})" if abs(part) >= LEAST_PART else ""
    texts = (text_of_value(old, unit), text_of_value(new, unit))
    return f"{' -> '.join(texts)} {noun}{change}{f' ({note})' if note else ''}"
