"""`commtrace run`: a script on several ranks, recorded into a single trace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from commtrace.errors import CommtraceError, LaunchError, TraceError, UsageError, require_torch
from commtrace.exit_codes import text_of_exit
from commtrace.launched_rank import launched_rank
from commtrace.process_options import RUN_SUFFIX
from commtrace.tracefile.destinations import remove_joined
from commtrace.tracefile.facts import WRITE_ERRORS
from commtrace.tracefile.joining.split import LEFT_OUT
from commtrace.tracefile.run_folder import make_run_folder, remove_run_folder, spools_beside
from commtrace.tracefile.spool import SPOOL_SUFFIX
from commtrace.units import counted, text_of_ranks
from commtrace_cli.launching import Program, chosen_options, run_on_nodes
from commtrace_cli.options import nodes, outputs, recorded, scripts
from commtrace_cli.preparing import prepared, prepared_if_possible
from commtrace_cli.terminal import check_output, fail, finish, say, show_traceback, working
from commtrace_cli.verdict import print_verdict

if TYPE_CHECKING:
    from commtrace.launching.launcher import LaunchResult
    from commtrace.process_options import ProcessOptions
    from commtrace.tracefile.dataset import Dataset

EXAMPLE = """
Examples:

- `commtrace run --nproc 4 -o run.json train.py --steps 10`
- `commtrace run -n 8 --detail collective -o LONG.comm -m my_package.train`
- `commtrace run -n 8 --nnodes 2 --node-rank 0 --master-addr node0 -o RUN.comm train.py`

Exit codes: `0` all ranks succeeded; `1` a rank failed, was killed, or ran longer than `--timeout`;
`2` a usage error; `3` all succeeded, but not all of the recording was written; `128 + n` stopped by
signal n: `130` by Ctrl-C, `143` by `kill`.
"""

SETTINGS = {"allow_interspersed_args": False}


def run(
    script: scripts.Script,
    nproc: scripts.Ranks,
    arguments: scripts.ScriptArguments = None,
    output: outputs.RunOutput = Path("run.json"),
    dataset: outputs.RunDataset = False,
    module: scripts.IsModule = False,
    detail: recorded.HowMuch = None,
    stacks: recorded.Stacks = False,
    max_calls: recorded.MaxCalls = None,
    every: recorded.Every = None,
    ring: recorded.Ring = None,
    values: recorded.Values = False,
    values_level: recorded.ValuesLevel = None,
    timeout: scripts.Timeout = None,
    force: outputs.Force = False,
    library: recorded.Libraries = None,
    nnodes: nodes.Nodes = None,
    node_rank: nodes.NodeRank = None,
    master_addr: nodes.MasterAddress = None,
    master_port: nodes.MasterPort = None,
    rdzv_backend: nodes.RendezvousBackend = None,
    rdzv_endpoint: nodes.RendezvousEndpoint = None,
    rdzv_id: nodes.RendezvousId = None,
    max_restarts: nodes.MaxRestarts = None,
) -> None:
    """Run a script on N ranks of this machine and record the communication of each.

    The script needs no changes: RANK and WORLD_SIZE are set as under torchrun, and its output
    passes through. Options after SCRIPT belong to the script. If a rank fails, the recording until
    then is kept. With `--nproc 1`, ranks that the script starts itself, for instance with
    `torch.multiprocessing.spawn`, are the ranks of the run. With `--nnodes`, torchrun starts the
    ranks, and each node gives the same command, with its own `--node-rank` or a common rendezvous.
    """
    require_torch("commtrace run")
    of_nodes = {
        "--nnodes": nnodes,
        "--node-rank": node_rank,
        "--master-addr": master_addr,
        "--master-port": master_port,
        "--rdzv-backend": rdzv_backend,
        "--rdzv-endpoint": rdzv_endpoint,
        "--rdzv-id": rdzv_id,
        "--max-restarts": max_restarts,
    }
    program = Program(script, tuple(arguments or ()), module, nproc)
    chosen = chosen_options(detail, stacks, max_calls, every, ring, library, values, values_level)
    launched = {name: str(value) for name, value in of_nodes.items() if value is not None}
    is_folder = output.suffix == RUN_SUFFIX
    if dataset and (launched or not is_folder):
        raise UsageError(
            f"cannot prepare a dataset in {output}",
            found="a run of several nodes" if launched else "a file",
            why="a dataset is a part of the folder that has all ranks",
            attempt=f"`commtrace merge` with the folders of all nodes, and -o {output} --dataset"
            if launched
            else "-o RUN.comm",
        )
    if launched:
        run_on_nodes(program, output, chosen, launched, timeout_s=timeout, force=force)
    _refuse_within_a_rank(script)
    from commtrace.launching.launcher import check_program

    check_program(script, is_module=module)  # before --force removes anything
    check_output(output, force=force, is_folder=is_folder)
    folder = output if is_folder else spools_beside(output)
    spools = _empty_folder(folder, force=force)
    if is_folder:
        make_run_folder(folder)
    say(f"recording {script} on {counted(nproc, 'rank')}")
    result = _launch(program, spools, chosen, timeout)
    _report_failure(result, program, timeout)
    if any(spools.glob(f"*{SPOOL_SUFFIX}")):  # otherwise no rank got that far
        stored = prepared(spools) if dataset else None
        if is_folder and stored is None:
            stored = prepared_if_possible(spools)
        lacks = _finish(spools, output, program, stored, has_failed=not result.ok)
    else:
        lacks = [f"its folder {spools} was removed meanwhile"] if not spools.is_dir() else []
        _remove(spools)
        if not result.ok:
            say("note: nothing was recorded: no rank had begun to record", always=True)
    if not result.ok:
        raise typer.Exit(result.exit_code if result.failed_rank is None else LaunchError.exit_code)
    if lacks:
        raise TraceError(
            f"the recording of {script} is not complete, though the program succeeded",
            found="; ".join(lacks),
            attempt="more space, or another folder, which nothing removes while it is recorded",
        )


def _launch(
    program: Program, spools: Path, chosen: ProcessOptions, timeout_s: float | None
) -> LaunchResult:
    from commtrace.launching.launcher import run_script
    from commtrace.launching.temporary_folders import remove_abandoned

    for sentence in remove_abandoned():
        say(f"note: {sentence}", always=True)
    try:
        return run_script(
            program.script,
            program.arguments,
            nproc=program.nproc,
            spool_folder=spools,
            options=chosen,
            is_module=program.is_module,
            timeout_s=timeout_s,
        )
    except CommtraceError:  # nothing worth keeping was recorded
        _remove(spools)
        raise


def _finish(
    spools: Path, output: Path, program: Program, stored: Dataset | None, *, has_failed: bool
) -> Sequence[str]:
    """Write the run file, unless the run is a folder; return why ranks could not write all.

    Args:
        spools: Folder of the ranks' recordings.
        output: The run file, or the same folder.
        program: The program that was recorded.
        stored: The dataset in the folder, if any.
        has_failed: Print the first fault that `commtrace check` finds in it, too.
    """
    from commtrace.launching.child_ranks import notes_of
    from commtrace.tracefile import Trace, read_parts, write_trace

    trace = stored
    if trace is None:
        with working("reading the ranks' recordings"):
            trace = read_parts([spools])
    left_out = trace.run.get(LEFT_OUT, [])
    if not trace.num_rows("comm"):
        is_whole = not (trace.run.get("torn_ranks") or trace.run.get("missing_ranks"))
        say(_note_on_silence(spools, program, is_whole=is_whole), always=True)
    shutil.rmtree(notes_of(spools), ignore_errors=True)
    if spools != output and isinstance(trace, Trace):
        with working("merging the ranks' recordings"):
            write_trace(trace, output)
        remove_joined(spools, left_out)
    if left_out:
        many = f"{len(left_out)} spools of ranks that {program.script} started earlier"
        say(f"note: {many} are not included, and stay in {spools}", always=True)
    command = "summary" if trace.num_rows("comm") or trace.num_rows("ops") else "info"
    if has_failed and trace.num_rows("comm"):
        command = "check"
        if isinstance(trace, Trace):
            print_verdict(trace)
    finish([output], then=["commtrace", command, output])
    return trace.run.get(WRITE_ERRORS, [])


def _refuse_within_a_rank(script: Path) -> None:
    """Refuse to start ranks in a process that a launcher has started as one of several.

    Raises:
        UsageError: it has.
    """
    launched = launched_rank(os.environ)
    if launched and launched.num_ranks > 1:
        raise UsageError(
            f"cannot start ranks of {script} here",
            found=f"{launched.variable}={launched.rank}: this process is rank {launched.rank} of "
            f"{launched.num_ranks}, started by {launched.launcher}",
            why="each of these processes would start ranks of its own",
            attempt=f"commtrace record -o RUN.comm {script}, which records the process as that "
            "rank; or `commtrace run` without the launcher",
        )


def _note_on_silence(spools: Path, program: Program, *, is_whole: bool) -> str:
    """Return the note on a run without any recorded call.

    Only a recording that every rank has closed shows that the program made none.
    """
    from commtrace.launching.child_ranks import num_with_group, programs

    num = num_with_group(spools)
    found = f"a process group in {num} processes, without a call on it" if num else ""
    attempt = ""
    if started := programs(spools):
        found = f"programs that it started, which are not recorded: {'; '.join(started[:3])}"
        attempt = "record the program with the ranks: commtrace run --nproc N PROGRAM"
    lines = [
        f"note: {program.script} communicated nothing"
        if is_whole
        else f"note: no communication of {program.script} was recorded, but not every rank closed "
        "its recording",
        f"  found: {found or f'no process group on any of {program.nproc} ranks'}",
        f"  try: {attempt}" if attempt else "",
    ]
    return "\n".join(filter(None, lines))


def _empty_folder(spools: Path, *, force: bool) -> Path:
    """Return an empty place for spools beside the output, to be found even if all is killed."""
    if spools.exists() and not force:
        raise UsageError(
            f"cannot record into {spools}",
            found="spools of an interrupted run",
            attempt=f"`commtrace summary {spools}` to inspect it, or --force to overwrite it",
        )
    _remove(spools)
    return spools


def _remove(spools: Path) -> None:
    """Remove a folder of spools, but no other files that may be in it."""
    from commtrace.launching.child_ranks import notes_of

    shutil.rmtree(notes_of(spools), ignore_errors=True)
    remove_run_folder(spools)


def _report_failure(result: LaunchResult, program: Program, timeout_s: float | None) -> None:
    """Print the script's traceback, then the failed rank; nothing if all went well."""
    if result.ok:
        return
    from commtrace.launching.failures import advice_on, error_of

    script, nproc = program.script, program.nproc
    if result.failed_rank is None:
        fail(LaunchError(f"{script} was stopped", found=text_of_exit(result.exit_code)))
        return
    if result.stuck:
        from commtrace.launching.watchdog import format_stacks

        show_traceback(format_stacks(result.stuck))
        summary = f"{script} on {counted(nproc, 'rank')} did not end within {timeout_s:g} s"
        fail(LaunchError(summary, found=f"{text_of_ranks(sorted(result.stuck))} still running"))
        return
    show_traceback(result.traceback.rstrip("\n"))
    failure = f"{script} failed on rank {result.failed_rank} of {nproc}"
    error = error_of(result.traceback)
    found = error or text_of_exit(result.exit_code)
    fail(LaunchError(failure, found=found, attempt=advice_on(error)))
