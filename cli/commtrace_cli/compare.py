"""`commtrace compare`: the first tensor in which two runs of a program differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.padding import Padding

from commtrace_cli.check import UNDECIDED
from commtrace_cli.documents import write_csv, write_document
from commtrace_cli.loading import load_run, say_replayed
from commtrace_cli.options import inputs, outputs, printing, selection
from commtrace_cli.tables import plain_table
from commtrace_cli.terminal import Text, check_output, data_console, finish, working

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from commtrace.analyze.values import Fault, ValueComparison

EXAMPLE = """
Examples:

- `commtrace run --nproc 1 --values -o one.json train.py`, then
  `commtrace run --nproc 4 --values -o four.json train.py`
- `commtrace compare one.json four.json`
- `commtrace compare one.json four.json --reference float64.json` for programs in bfloat16
- `commtrace compare one.json four.json -o values.html`

Exit codes: `0` the runs agree, `1` a tensor is wrong, `2` a usage error, `3` a trace cannot be
read, `4` nothing differs, but too little was compared to say that the runs agree.
"""

DIFFERS = 1


def compare(
    right: inputs.RightRun,
    other: inputs.OtherRun,
    reference: inputs.Reference = None,
    output: outputs.ComparisonOutput = None,
    force: outputs.Force = False,
    rows: selection.Rows = 10,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
) -> None:
    """Compare the values of two runs of a program; name the first tensor that is wrong.

    The runs may differ in layout, world size, dtype or version, and are recorded with `--values`.
    The first run is taken for right. Tensors are paired by step, module and name, operators in the
    order of their call. The first tensor whose difference exceeds rounding is printed with both
    layouts, its relation to the right tensor (a factor, missing parts, other places, an earlier
    value), and the communication before it. `--reference` is a run of the first program in float64:
    the error of its own precision then decides what rounding explains. `-o` also writes a page with
    the verdict and a map of divergence by module and step.
    """
    paths = [right, other, *([reference] if reference is not None else [])]
    if output is not None:
        check_output(output, force=force, read=paths)
    runs = [load_run(path) for path in paths]
    say_replayed(*runs)
    from commtrace.analyze.comparisons.compared import compare as compared

    with working(f"comparing {right} and {other}"):
        comparison = compared(*runs)
    if output is not None:
        with working(f"drawing {output}"):
            from commtrace.report import write_comparison

            write_comparison(comparison, runs[0], runs[1], output)
    if as_csv:
        write_csv(comparison.pairs)
    elif as_json:
        write_document(runs[1].run, _document(comparison))
    else:
        _print(comparison, other, rows)
    if output is not None:
        finish([output], then=["python", "-m", "webbrowser", output])
    elif not (as_csv or as_json):
        finish([], then=["commtrace", "compare", right, other, "-o", "values.html"])
    if not comparison.agrees:
        raise typer.Exit(DIFFERS)
    if not comparison.is_conclusive:
        raise typer.Exit(UNDECIDED)


def _document(comparison: ValueComparison) -> Mapping[str, Any]:
    names = (
        "num_left",
        "num_right",
        "num_paired",
        "num_unknown",
        "num_wrong",
        "num_doubtful",
        "has_reference",
    )
    wrong = comparison.pairs[comparison.pairs["is_wrong"]]
    return {
        "compared": {name: getattr(comparison, name) for name in names},
        "open_questions": comparison.open_questions,
        "fault": comparison.fault,
        "wrong": [_plain(row) for row in wrong.to_dict("records")],
    }


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(name): getattr(value, "item", lambda value=value: value)()
        for name, value in row.items()
    }


def _print(comparison: ValueComparison, other: Path, rows: int) -> None:
    from commtrace.analyze.values import agreement, limits

    console = data_console()
    fault = comparison.fault
    if fault is None:
        style = "bold green" if comparison.is_conclusive else "bold yellow"
        console.print(Text(agreement(comparison), style=style))
    else:
        for line in comparison.open_questions:
            console.print(Text(line, style="yellow"))
        _print_fault(console, fault, other)
    for line in limits(comparison):
        if fault is None or line not in comparison.open_questions:
            console.print(Text(line, style="dim"))
    if fault is not None:
        _print_wrong(console, comparison, rows)


def _print_fault(console: Console, fault: Fault, other: Path) -> None:
    from commtrace.analyze.values import evidence, title

    console.print(Text(title(fault, str(other)), style="bold red"))
    for line in evidence(fault):
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _print_wrong(console: Console, comparison: ValueComparison, rows: int) -> None:
    from commtrace.analyze import Analysis
    from commtrace.analyze.values import name_of
    from commtrace.schema import Column

    wrong = comparison.pairs[comparison.pairs["is_wrong"]]
    shown = wrong.head(rows).assign(
        tensor=[name_of(row) for row in wrong.head(rows).to_dict("records")],
        distance=[f"{each:.2g}" for each in wrong.head(rows)["distance"]],
        tolerance=[f"{each:.2g}" for each in wrong.head(rows)["tolerance"]],
    )
    columns = (
        Column("step", int, "", ""), Column("phase", str, "", ""), Column("tensor", str, "", ""),
        Column("distance", str, "", ""), Column("tolerance", str, "", ""),
    )  # fmt: skip
    title = f"Tensors that differ: {len(wrong):,} of {comparison.num_paired:,}"
    analysis = Analysis("wrong", title, "", lambda _: shown, columns)
    drawn = plain_table(console.width, analysis, shown, 0, important=["tensor", "distance"])
    console.print()
    console.print(drawn.table)
    if len(wrong) > rows:
        console.print(Text(f"{len(wrong) - rows:,} more: --rows {len(wrong)}", style="dim"))
