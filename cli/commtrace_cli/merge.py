"""`commtrace merge`: merging of the ranks' spools into one run file."""

from __future__ import annotations

from pathlib import Path

from commtrace.units import text_of_ranks
from commtrace_cli import options
from commtrace_cli.terminal import check_output, finish, say, working

EXAMPLE = "Example: `commtrace merge run.json.spools -o run.json`"

MOST_LISTED = 20


def merge(
    folder: options.Spools,
    output: options.Output = Path("run.json"),
    force: options.Force = False,
) -> None:
    """Merge the spools of an interrupted run, one per rank, into a run file.

    The file lists ranks whose spool is missing or truncated. The spools are kept. For a run on
    several hosts, copy the spools of all hosts into one folder first.
    """
    check_output(output, force=force, read=[folder])
    with working(f"reading {folder}"):
        from commtrace.tracefile import read_spools, write_trace

        trace = read_spools(folder)
        write_trace(trace, output)
    for name, found in (("no spool of", "missing_ranks"), ("not closed by", "torn_ranks")):
        ranks = trace.run[found]
        if ranks:
            say(f"note: {name} {text_of_ranks(ranks)}", always=True)
    finish([output], then=["commtrace", "report", output])
