"""`commtrace import`: conversion of another tool's recording to a run file."""

from __future__ import annotations

from pathlib import Path

from commtrace.units import counted
from commtrace_cli.options import inputs, outputs
from commtrace_cli.terminal import check_output, finish, say, working

EXAMPLE = """
Examples:

- `commtrace import /tmp/nccl_trace_rank_* -o run.json` and then `commtrace check run.json`
- `commtrace import profile/rank0.json.gz profile/rank1.json.gz -o run.json`
- `commtrace import dumps/ -o run.json` imports all files of a folder
- `commtrace import nccl-inspector-42/ -o run.json`
- `commtrace import ras-1.json ras-2.json -o run.json` and then `commtrace check run.json`
- `commtrace import et/ -o run.json`: execution traces of Chakra, and the file of their groups
- `commtrace import train.log -o run.json` and then `commtrace check run.json`: which rank is behind
- `commtrace import nccl-inspector-42/ --recording run.json -o joined.json`: the recording, with the
  times that NCCL's kernels took
"""


def import_(
    sources: inputs.Sources,
    output: outputs.Output = Path("run.json"),
    force: outputs.Force = False,
    recording: inputs.Recording = None,
) -> None:
    """Convert traces of other tools to a run file.

    Supported are traces of torch.profiler, flight-recorder dumps of torch and torchcomms, the
    logs of NCCL Inspector, snapshots of NCCL RAS (`ncclras -f json`; several show
    progress), torch's ExecutionTraces, execution traces of MLCommons Chakra, SQLite exports of
    Nsight Systems, and text of any number of ranks with lines of torch's watchdog at a time-out, or
    of `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=INIT,COLL`.

    Pass one file per rank, or folders of them. Chrome traces of torch.profiler may be gzipped.
    Dumps of the flight recorder may be JSON or pickle; a pickle with anything beyond plain values
    is rejected. Ranks are read from the files, or from their names. Data that the source lacks is
    reported, and unknown in every table.

    With `--recording`, the times that kernels took, of Inspector's logs and of dumps, are joined to
    the calls of a recording of the same run, and so to its modules, lines and steps. What does not
    fit is reported, and not joined.
    """
    check_output(output, force=force, read=[*sources, *([recording] if recording else [])])
    named = ", ".join(map(str, sources[:3])) + (", ..." if len(sources) > 3 else "")
    with working(f"reading {named}"):
        from commtrace.importers import import_trace
        from commtrace.tracefile import write_trace

        trace = import_trace(sources, recording)
        write_trace(trace, output)
    if recording is not None:
        for joined in trace.run["joined"]:
            say(f"note: {joined}", always=True)
        finish([output], then=["commtrace", "report", output])
        return
    calls, ranks = trace.num_rows("comm"), trace.num_rows("ranks")
    source = trace.run["imported_from"]
    say(f"imported {counted(calls, 'call')} of {counted(ranks, 'rank')} from {source}", always=True)
    if num := len(set(trace.tables["communicators"]["group"])):
        say(f"imported the counts of {counted(num, 'communicator')}", always=True)
    say(f"note: ranks: {trace.run['ranks_from']}", always=True)
    if "kernels" in trace.run:
        say(f"note: {trace.run['kernels']}", always=True)
    for missing in trace.run["lacks"]:
        say(f"note: the source lacks {missing}", always=True)
    finish([output], then=["commtrace", "check", output])
