"""`commtrace merge`: merging of the parts of a run into one run file."""

from __future__ import annotations

from pathlib import Path

from commtrace.tracefile.split import LEFT_OUT
from commtrace.units import text_of_ranks
from commtrace_cli import options
from commtrace_cli.terminal import check_output, finish, say, working

EXAMPLE = """
Examples:

- `commtrace merge run.json.spools -o run.json`
- `commtrace merge node0/RUN.comm node1/RUN.comm -o run.json`
"""

MOST_LISTED = 5


def merge(
    parts: options.Parts,
    output: options.Output = Path("run.json"),
    force: options.Force = False,
) -> None:
    """Merge the parts of a run, wherever they are, into a run file.

    A part is a folder RUN.comm, the spools of an interrupted run, a run file of some of the ranks,
    or a folder that contains those, in any order. Reports ranks that are missing or were cut off,
    and the files of earlier runs, which are left out. The parts are kept.
    """
    check_output(output, force=force, read=parts)
    with working(f"reading {', '.join(map(str, parts))}"):
        from commtrace.tracefile import read_parts, write_trace

        trace = read_parts(parts)
        write_trace(trace, output)
    for name, found in (("no part of", "missing_ranks"), ("not closed by", "torn_ranks")):
        ranks = trace.run[found]
        if ranks:
            say(f"note: {name} {text_of_ranks(ranks)}", always=True)
    left_out = trace.run.get(LEFT_OUT, [])
    if left_out:
        listed = [*left_out[:MOST_LISTED], *(["..."] if len(left_out) > MOST_LISTED else [])]
        say(f"note: left out, of earlier runs: {', '.join(listed)}", always=True)
    finish([output], then=["commtrace", "report", output])
