"""`commtrace check`: consistency of the ranks of a run, with the result as exit code."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.padding import Padding

from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import inputs, printing, processes, selection
from commtrace_cli.parting import print_lines
from commtrace_cli.terminal import Text, data_console, finish, styled

if TYPE_CHECKING:
    from commtrace.views.checked import Checked

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
    from commtrace.views.checked import Checked

    checked = Checked.of(frames, gradients=gradients)
    problems, audit = checked.problems, checked.gradients
    if as_csv:
        write_csv(problems if audit is None else audit)
    elif as_json:
        parted = CATALOG["divergences"]
        tables = {CATALOG["consistency"]: problems, parted: parted.function(frames)}
        tables |= {} if audit is None else {CATALOG["gradients"]: audit}
        write_json(frames.run, tables, compared=asdict(compared(frames)))
    elif not problems.empty or gradients or not is_silent(frames, trace):
        _print(checked)
        finish([], then=["commtrace", "report", trace])
    if checked.has_fault:
        raise typer.Exit(FAULT)
    if audit is not None and (audit["state"] == "unknown").all():
        raise typer.Exit(UNDECIDED)


def _print(checked: Checked) -> None:
    console = data_console()
    for line in checked.result:
        console.print(styled(line))
    for each in checked.found():
        console.print()
        console.print(styled(each.heading))
        console.print(Padding(Text(each.explanation), (0, 0, 0, 2), expand=False))
        if each.source:
            source = Text(f"at {each.source}", style="dim")
            console.print(Padding(source, (0, 0, 0, 2), expand=False))
        print_lines(console, each.parting)
    for number, line in enumerate(checked.audit):
        if number == 0:
            console.print()
        console.print(Padding(styled(line), (0, 0, 0, 2 if number else 0), expand=False))
