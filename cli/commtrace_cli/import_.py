"""`commtrace import`: conversion of another tool's recording to a run file."""

from __future__ import annotations

from pathlib import Path

from commtrace_cli import options
from commtrace_cli.terminal import check_output, finish, say, working

EXAMPLE = """
Examples:

- `commtrace import /tmp/nccl_trace_rank_* -o run.json` and then `commtrace check run.json`
- `commtrace import profile/rank0.json.gz profile/rank1.json.gz -o run.json`
- `commtrace import dumps/ -o run.json` takes every file of a folder
"""


def import_(
    sources: options.Sources,
    output: options.Output = Path("run.json"),
    force: options.Force = False,
) -> None:
    """Make a run file of what others recorded: traces of torch.profiler, flight-recorder dumps.

    Give one file of each rank, or folders of them. Chrome traces of torch.profiler may be gzipped;
    dumps of the flight recorder may be JSON or pickle, of which only plain values are loaded: a
    pickle that asks for more is refused. Ranks are told by the files, or by their names. What the
    source does not have is told, and stays unknown in every table.
    """
    check_output(output, force=force, read=sources)
    named = ", ".join(map(str, sources[:3])) + (", ..." if len(sources) > 3 else "")
    with working(f"reading {named}"):
        from commtrace.importers import import_trace
        from commtrace.tracefile import write_trace

        trace = import_trace(sources)
        write_trace(trace, output)
    calls, ranks = trace.num_rows("comm"), trace.num_rows("ranks")
    source = trace.run["imported_from"]
    say(f"imported {calls:,} calls of {ranks} ranks from {source}", always=True)
    say(f"note: ranks: {trace.run['ranks_from']}", always=True)
    for missing in trace.run["lacks"]:
        say(f"note: it does not tell {missing}", always=True)
    finish([output], then=["commtrace", "check", output])
