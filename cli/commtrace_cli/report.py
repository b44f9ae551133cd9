"""`commtrace report`: HTML page of a trace."""

from __future__ import annotations

from pathlib import Path

from commtrace_cli.loading import load_run
from commtrace_cli.options import inputs, outputs, selection
from commtrace_cli.selecting import selection_of
from commtrace_cli.terminal import check_output, finish, working

EXAMPLE = """
Examples:

- `commtrace report run.json -o report.html`
- `commtrace report run.json --steps 3:5 -o steps.html`
- `commtrace report run.json --window 1.5s:2s -o half_a_second.html`
- `commtrace report RUN.comm --ranks 0-7 -o eight_ranks.html`
- `commtrace report run.json --link '400 Gbit/s' --link 'tp=450 GB/s'`
"""


def report(
    trace: inputs.Trace,
    output: outputs.Output = Path("report.html"),
    force: outputs.Force = False,
    window: selection.Window = None,
    steps: selection.Steps = None,
    ranks: selection.ChosenRanks = None,
    link: selection.Link = None,
) -> None:
    """Write an HTML page with the findings, flame graph, timeline and tables of a run.

    The page is a self-contained file: findings, the consistency check, a flame graph from module
    to operator to collective, a timeline of every rank that zooms to single calls, patterns over
    steps, ranks and sizes, and tables to sort and search.

    With a window or steps, the page covers that part of the run. With ranks, it has the single
    calls of these ranks, and the numbers of all. If a run is larger than memory, it has the single
    calls of one step and around its findings. Bandwidths are compared with the speed of the link,
    if it is given.
    """
    check_output(output, force=force, read=[trace])
    chosen = selection_of(window, steps, ranks, link)
    frames = load_run(trace, needs_events=True)
    with working(f"drawing {output}"):
        from commtrace.report import write_report

        write_report(frames, output, chosen)
    finish([output], then=["python", "-m", "webbrowser", output])
