"""`commtrace check`: consistency of the ranks of a run, with the result as exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.padding import Padding

from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import inputs, printing, processes, selection
from commtrace_cli.parting import print_parting
from commtrace_cli.terminal import Text, data_console, finish

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from commtrace.analyze import Frames
    from commtrace.analyze.consistency import Comparison

EXAMPLE = """
Examples:

- `commtrace check run.json`
- `commtrace check run.json.spools` after a run that hung and was killed
- `commtrace check run.json --gradients`: also how gradients were reduced, of a run with `--values`
- `commtrace check run.json --json > problems.json || echo broken`

Exit codes: `0` no fault (parts that could not be checked are reported), `1` a fault, `2` a usage
error, `3` the trace cannot be read, `4` `--gradients` has none to check.
"""

FAULT, UNDECIDED = 1, 4


def check(
    trace: inputs.Trace,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    workers: processes.AnalysisWorkers = None,
    dask: processes.Dask = None,
    gradients: selection.Gradients = False,
) -> None:
    """Check that all ranks made consistent calls; report the first disagreement and its ranks.

    The check compares, in every group, the kind, reduction, root, element type and size of each
    collective. It finds ranks missing from a collective, orders of calls on different groups that
    can deadlock, and sends without matching receives. Ranks that differ from the majority are
    blamed. Calls lost by the recording are distinguished from calls that were never made.

    Below a fault is where the ranks parted before it: the last call that they made alike, the line
    that each went on to, the branch between these lines, and what happened on one rank only (an
    exception, a compilation, the end of its data, a pause).

    The output states how many calls were compared, and why others were not. `--json` has these
    numbers under `compared`.

    In a run with values of tensors, replicas that differ are faults, and so are gradients, losses
    and norms that lack contributions or have the wrong factor. `--gradients` also prints how each
    gradient was reduced: over which ranks, how many contributions, and with which factor.
    """
    frames = load_run(trace, workers, dask)
    from commtrace.analyze import CATALOG
    from commtrace.analyze.consistency import compared

    analysis = CATALOG["consistency"]
    problems = analysis.function(frames)
    has_fault = bool(problems["is_fault"].any())
    parted = CATALOG["divergences"]
    audit = {CATALOG["gradients"]: CATALOG["gradients"].function(frames)} if gradients else {}
    if as_csv:
        write_csv(next(iter(audit.values()), problems))
    elif as_json:
        tables = {analysis: problems, parted: parted.function(frames), **audit}
        write_json(frames.run, tables, compared=asdict(compared(frames)))
    elif not problems.empty or audit or not is_silent(frames, trace):
        _print(frames, problems, compared(frames), parted.function(frames) if has_fault else None)
        if gradients:
            _print_gradients(frames)
        finish([], then=["commtrace", "report", trace])
    if has_fault:
        raise typer.Exit(FAULT)
    if any((table["state"] == "unknown").all() for table in audit.values()):
        raise typer.Exit(UNDECIDED)


def _print_gradients(frames: Frames) -> None:
    from commtrace.analyze import notices_of
    from commtrace.analyze.gradients import gradients, summary

    console = data_console()
    console.print()
    lines = summary(gradients(frames))
    if not lines:
        lacking = [each.text for each in notices_of(frames, "gradients") if each.is_minor]
        text = " ".join(lacking) or "No reduced gradient was observed in this run."
        console.print(Text(f"gradients: {text}", style="yellow"))
        return
    console.print(Text("How gradients were reduced", style="bold"))
    for line in lines:
        style = "bold red" if line.is_fault else _STYLE_OF_STATE.get(line.state, "yellow")
        console.print(
            Padding(
                Text.assemble((f"{line.state:8}", style), line.text), (0, 0, 0, 2), expand=False
            )
        )


_STYLE_OF_STATE = {"right": "green"}
_STYLES = {"good": "bold green", "bad": "bold red", "": "bold yellow"}


def _print(
    frames: Frames, problems: pd.DataFrame, comparison: Comparison, parted: pd.DataFrame | None
) -> None:
    from commtrace.analyze.consistency import NOT_COMPARED, result_of
    from commtrace.analyze.divergence import first_verdict, of_fault

    console = data_console()
    if verdict := first_verdict(problems, parted):
        console.print(Text(verdict, style=_STYLES["bad"]))
    result, mood = result_of(frames, comparison, int(problems["is_fault"].sum()))
    console.print(Text(result, style=_STYLES[mood]))
    for line in comparison.lines():
        console.print(Text(line, style="dim"))
    for text in _lacks(frames):
        console.print(Text(f"note: {text}", style="yellow"))
    # `lines` has stated the calls that were not compared.
    for row in problems[problems["problem"] != NOT_COMPARED].to_dict("records"):
        _print_one(console, row)
        print_parting(console, [] if parted is None else of_fault(parted, row))


def _lacks(frames: Frames) -> list[str]:
    """Return what the trace lacks, so that an empty result is not mistaken for a clean run."""
    from commtrace.analyze import notices_of
    from commtrace.analyze.notices import EVERYTHING

    notices = [each for each in notices_of(frames) if not each.is_minor]
    return [each.text for each in notices if EVERYTHING in each.limits]


def _print_one(console: Console, row: Mapping[Any, Any]) -> None:
    from commtrace.analyze.consistency.problem import blame_text

    style = "bold red" if row["is_fault"] else "bold yellow"
    blamed = blame_text(row)
    console.print()
    console.print(Text.assemble((str(row["problem"]), style), f"  {blamed}" if blamed else ""))
    console.print(Padding(Text(str(row["explanation"])), (0, 0, 0, 2), expand=False))
    if row["source"]:
        source = Text(f"at {row['source']}", style="dim")
        console.print(Padding(source, (0, 0, 0, 2), expand=False))
