"""`commtrace run`: a script on several ranks, recorded into one trace."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from commtrace.errors import CommtraceError, LaunchError, UsageError, require_torch
from commtrace.settings import DETAILS, LIBRARIES_VARIABLE, settings_of
from commtrace_cli import options
from commtrace_cli.terminal import check_output, fail, finish, say, working

if TYPE_CHECKING:
    from commtrace.launcher import LaunchResult

EXAMPLE = """
Examples:

- `commtrace run --nproc 4 -o run.json train.py --steps 10`
- `commtrace run -n 8 --detail collective -o long.json train.py`
"""

SETTINGS = {"allow_interspersed_args": False}


def run(
    script: options.Script,
    nproc: options.Ranks,
    arguments: options.ScriptArguments = None,
    output: options.Output = Path("run.json"),
    detail: options.HowMuch = None,
    stacks: options.Stacks = False,
    force: options.Force = False,
    library: options.Libraries = None,
) -> None:
    """Run a script on N ranks of this machine and record the communication of each.

    The script needs no changes: RANK and WORLD_SIZE are set as under torchrun, and its output
    passes through. Options after SCRIPT belong to the script. If a rank fails, the recording until
    then is kept. With `--nproc 1`, ranks that the script starts itself, for instance with
    `torch.multiprocessing.spawn`, are the ranks of the run.
    """
    require_torch("commtrace run")
    settings = settings_of()
    if library:
        known = filter(None, [os.environ.get(LIBRARIES_VARIABLE), *library])
        os.environ[LIBRARIES_VARIABLE] = ",".join(known)  # which the ranks inherit
    check_output(output, force=force)
    spools = _empty_folder(output.with_name(f"{output.name}.spools"), force=force)
    say(f"recording {script} on {nproc} ranks")
    from commtrace.launcher import run_script
    from commtrace.temporary_folders import remove_abandoned
    from commtrace.tracefile import SPOOL_SUFFIX
    from commtrace.tracefile.stores import remove_joined

    for sentence in remove_abandoned():
        say(f"note: {sentence}", always=True)
    try:
        result = run_script(
            script,
            arguments or (),
            nproc=nproc,
            spool_folder=spools,
            detail=(detail.value if detail else settings.detail) or DETAILS[0],
            stacks=stacks,
        )
    except CommtraceError:  # nothing worth keeping was recorded
        shutil.rmtree(spools, ignore_errors=True)
        raise
    _report_failure(result, script, nproc)
    left_out: list[str] = []
    if any(spools.glob(f"*{SPOOL_SUFFIX}")):  # otherwise no rank got that far
        left_out = _merge(spools, output, script, nproc)
    remove_joined(spools, left_out)
    if not result.ok:
        raise typer.Exit(result.exit_code if result.failed_rank is None else LaunchError.exit_code)


def _merge(spools: Path, output: Path, script: Path, nproc: int) -> list[str]:
    """Write the run file and report what it lacks; return the names of omitted spools."""
    from commtrace.tracefile import read_spools, write_trace
    from commtrace.tracefile.merge import LEFT_OUT

    with working("merging the ranks' recordings"):
        trace = read_spools(spools)
        write_trace(trace, output)
    left_out = trace.run.get(LEFT_OUT, [])
    if left_out:
        many = f"{len(left_out)} spools of ranks that {script} started earlier"
        say(f"note: {many} are not included, and stay in {spools}", always=True)
    if not trace.num_rows("comm"):
        is_whole = not (trace.run.get("torn_ranks") or trace.run.get("missing_ranks"))
        say(_note_on_silence(spools, script, nproc, is_whole=is_whole), always=True)
    has_something = trace.num_rows("comm") or trace.num_rows("ops")
    finish([output], then=["commtrace", "summary" if has_something else "info", output])
    return left_out


def _note_on_silence(spools: Path, script: Path, nproc: int, *, is_whole: bool) -> str:
    """Return the note on a run without any recorded call.

    Only a recording that every rank has closed shows that the program made none.
    """
    from commtrace.child_ranks import num_with_group, programs

    num = num_with_group(spools)
    found = f"a process group in {num} processes, without a call on it" if num else ""
    attempt = ""
    if started := programs(spools):
        found = f"programs that it started, which are not recorded: {'; '.join(started[:3])}"
        attempt = "record the program with the ranks: commtrace run --nproc N PROGRAM"
    lines = [
        f"note: {script} communicated nothing"
        if is_whole
        else f"note: no communication of {script} was recorded, but not every rank closed its "
        "recording",
        f"  found: {found or f'no process group on any of {nproc} ranks'}",
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
    shutil.rmtree(spools, ignore_errors=True)
    return spools


def _report_failure(result: LaunchResult, script: Path, nproc: int) -> None:
    """Print the script's traceback, then the failed rank; nothing if all went well."""
    if result.ok:
        return
    if result.failed_rank is None:
        fail(LaunchError(f"{script} was stopped", found=_ending(result.exit_code)))
        return
    say(result.traceback.rstrip("\n"), always=True)
    failure = f"{script} failed on rank {result.failed_rank} of {nproc}"
    last_line = result.traceback.strip().rpartition("\n")[2]
    fail(LaunchError(failure, found=last_line or _ending(result.exit_code)))


def _ending(exit_code: int) -> str:
    if exit_code <= 128:
        return f"exit code {exit_code}"
    return f"signal {exit_code - 128} ({signal.Signals(exit_code - 128).name})"
