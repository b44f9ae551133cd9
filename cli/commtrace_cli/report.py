"""`commtrace report`: HTML page of a trace."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from commtrace_cli.loading import load_run
from commtrace_cli.options import inputs, outputs, selection
from commtrace_cli.selecting import selection_of
from commtrace_cli.terminal import check_output, default_path, finish, say, working

EXAMPLE = """
Examples:

- `commtrace report run.json --open`
- `commtrace report run.json --steps 3:5 -o steps.html`
- `commtrace report run.json --window 1.5s:2s -o half_a_second.html`
- `commtrace report RUN.comm --ranks 0-7 -o eight_ranks.html`
- `commtrace report run.json --link '400 Gbit/s' --link 'tp=450 GB/s'`
"""


def report(
    trace: inputs.Trace,
    output: outputs.PageOutput = None,
    force: outputs.Force = False,
    window: selection.Window = None,
    steps: selection.Steps = None,
    ranks: selection.ChosenRanks = None,
    link: selection.Link = None,
    is_opened: outputs.Open = False,
    is_shared: outputs.Share = False,
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
    named = default_path(trace, ".html")
    page = output or named
    check_output(page, force=force or (output is None and _is_page(named)), read=[trace])
    chosen = selection_of(window, steps, ranks, link)
    frames = load_run(trace, needs_events=True)
    with working(f"drawing {page}"):
        from commtrace.report import write_report

        write_report(frames, page, chosen)
    if is_shared:
        page.chmod(page.stat().st_mode | 0o444)
    if is_opened and not webbrowser.open(page.resolve().as_uri()):
        say("note: found no browser that could open the page", always=True)
    finish([page], then=["python", "-m", "webbrowser", page])


_MARK = b'<meta name="generator" content="commtrace">'


def _is_page(path: Path) -> bool:
    """Return whether a file is a page of commtrace, which a later page of the run may replace."""
    try:
        with path.open("rb") as stream:
            return _MARK in stream.read(4096)
    except OSError:
        return False
