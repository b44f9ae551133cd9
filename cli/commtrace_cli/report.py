"""`commtrace report`: HTML page of a trace."""

from __future__ import annotations

from pathlib import Path

from commtrace_cli import options
from commtrace_cli.loading import load_events
from commtrace_cli.terminal import check_output, finish, working
from commtrace_cli.time_window import steps_of, window_of

EXAMPLE = """
Examples:

- `commtrace report run.json -o report.html`
- `commtrace report run.json --steps 3:5 -o steps.html`
- `commtrace report run.json --window 1.5s:2s -o half_a_second.html`
"""


def report(
    trace: options.Trace,
    output: options.Output = Path("report.html"),
    force: options.Force = False,
    window: options.Window = None,
    steps: options.Steps = None,
) -> None:
    """Write an HTML page with the findings, flame graph, timeline and tables of a run.

    The page is one self-contained file: findings, the consistency check, a flame graph from module
    to operator to collective, a timeline of every rank that zooms to single calls, patterns over
    steps, ranks and sizes, and tables to sort and search.

    With a window or steps, the page covers that part of the run.
    """
    check_output(output, force=force, read=[trace])
    window_ns, numbers = window_of(window), steps_of(steps)
    frames = load_events(trace)
    with working(f"drawing {output}"):
        from commtrace.report import write_report

        write_report(frames, output, window_ns=window_ns, steps=numbers)
    finish([output], then=["python", "-m", "webbrowser", output])
