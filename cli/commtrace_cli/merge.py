"""`commtrace merge`: merging of the parts of a run into one run file."""

from __future__ import annotations

from pathlib import Path

from commtrace.process_options import RUN_SUFFIX
from commtrace.tracefile.run_folder import remove_run_folder
from commtrace.tracefile.split import LEFT_OUT
from commtrace.units import text_of_ranks
from commtrace_cli import options
from commtrace_cli.terminal import check_output, finish, say, working

EXAMPLE = """
Examples:

- `commtrace merge run.json.spools -o run.json`
- `commtrace merge node0/RUN.comm node1/RUN.comm -o run.json`
- `commtrace merge node*/run.json* -o RUN.comm`
"""

MOST_LISTED = 5


def merge(
    parts: options.Parts,
    output: options.MergeOutput = Path("run.json"),
    force: options.Force = False,
) -> None:
    """Merge the parts of a run, wherever they are, into a run file or a folder RUN.comm.

    A part is a folder RUN.comm, the spools of an interrupted run, a run file of some of the ranks,
    or a folder that contains those, in any order. Reports ranks that are missing or were cut off,
    and the files of earlier runs, which are left out. The parts are kept.
    """
    is_folder = output.suffix == RUN_SUFFIX
    check_output(output, force=force, read=parts, is_folder=is_folder)
    with working(f"reading {', '.join(map(str, parts))}"):
        from commtrace.tracefile import copy_parts, read_parts, write_trace

        trace = read_parts(parts)
        if is_folder:
            remove_run_folder(output)
            copy_parts(parts, output)
        else:
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
