"""`commtrace report`: one page that shows a trace."""

from __future__ import annotations

from pathlib import Path

from commtrace_cli import options
from commtrace_cli.loading import load_events
from commtrace_cli.terminal import check_output, finish, working

EXAMPLE = "Example: `commtrace report run.json -o report.html`"


def report(
    trace: options.Trace,
    output: options.Output = Path("report.html"),
    force: options.Force = False,
) -> None:
    """Write a page that shows where a run communicates, how much, and how long that blocks it.

    One HTML file that opens anywhere, without a network: a flame graph from module to operator
    to collective, a timeline of every rank, and tables to sort and to search.
    """
    check_output(output, force=force)
    frames = load_events(trace)
    with working(f"drawing {output}"):
        from commtrace.report import write_report

        write_report(frames, output)
    finish([output], then=["python", "-m", "webbrowser", output])
