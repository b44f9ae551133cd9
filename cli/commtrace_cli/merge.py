"""`commtrace merge`: merging of the parts of a run into a run file, a folder or a dataset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commtrace.errors import UsageError
from commtrace.process_options import RUN_SUFFIX
from commtrace.tracefile.joining.split import LEFT_OUT
from commtrace.tracefile.run_folder import DATASET, replace_run_folder
from commtrace.units import text_of_ranks
from commtrace_cli.options import inputs, outputs, processes
from commtrace_cli.preparing import prepared
from commtrace_cli.terminal import check_output, finish, say, working

EXAMPLE = """
Examples:

- `commtrace merge RUN.comm`
- `commtrace merge run.json.spools -o run.json`
- `commtrace merge node0/RUN.comm node1/RUN.comm -o run.json`
- `commtrace merge node*/run.json* -o RUN.comm --dataset`
"""

MOST_LISTED = 5
_RUN_FILE = Path("run.json")


def merge(
    parts: inputs.Parts,
    output: outputs.MergeOutput = None,
    dataset: outputs.AsDataset = False,
    workers: processes.Workers = None,
    force: outputs.Force = False,
) -> None:
    """Merge the parts of a run, wherever they are, into a run file, a folder RUN.comm or a dataset.

    A part is a folder RUN.comm, the spools of an interrupted run, a run file of some of the ranks,
    or a folder that contains those, in any order. Reports ranks that are missing or were cut off,
    and the files of earlier runs, which are left out. The parts are kept.

    For a single folder RUN.comm without -o, prepares a dataset in it, from which every command then
    reads. An interrupted preparation is continued.
    """
    if output is None and len(parts) == 1 and (dataset or _is_run_folder(parts[0])):
        folder = _folder(parts[0])
        _report(prepared(folder, workers).run)
        finish([folder / DATASET], then=["commtrace", "report", folder])
        return
    output = output or _RUN_FILE
    is_folder = output.suffix == RUN_SUFFIX
    if dataset and not is_folder:
        raise UsageError(
            f"cannot prepare a dataset in {output}",
            found="a file",
            why="a dataset is a part of a folder",
            attempt="-o RUN.comm",
        )
    check_output(output, force=force, read=parts, is_folder=is_folder)
    with working(f"reading {', '.join(map(str, parts))}"):
        from commtrace.tracefile import copy_parts, read_parts, write_trace

        run = None if dataset else read_parts(parts)
        # Some of the parts would be taken for all of them, so a folder appears with all it has.
        made = output.with_name(f".{os.getpid()}.{output.name}") if is_folder else output
        if run is not None and not is_folder:
            write_trace(run, output)
    try:
        if is_folder:
            copy_parts(parts, made)
        if is_folder and not output.exists():
            # The preparation of a dataset that is interrupted there can be continued.
            replace_run_folder(output, made)
            made = output
        facts = prepared(made, workers, output).run if run is None else run.run
        if made != output:  # an earlier run stays until its replacement is complete
            replace_run_folder(output, made)
    finally:
        if made != output:
            shutil.rmtree(made, ignore_errors=True)
    _report(facts)
    if run is None:
        finish([output / DATASET], then=["commtrace", "report", output])
    else:
        finish([output], then=["commtrace", "report", output])


def _is_run_folder(part: Path) -> bool:
    return part.suffix == RUN_SUFFIX and part.is_dir()


def _folder(part: Path) -> Path:
    if part.exists() and not part.is_dir():
        raise UsageError(
            f"cannot prepare a dataset of {part}",
            found="a file",
            why="a dataset is a part of a folder",
            attempt="-o RUN.comm",
        )
    return part


def _report(run: Mapping[str, Any]) -> None:
    """Print what a run lacks and leaves out."""
    for name, found in (("no part of", "missing_ranks"), ("not closed by", "torn_ranks")):
        ranks: Sequence[int] = run[found]
        if ranks:
            say(f"note: {name} {text_of_ranks(ranks)}", always=True)
    left_out = run.get(LEFT_OUT, [])
    if left_out:
        listed = [*left_out[:MOST_LISTED], *(["..."] if len(left_out) > MOST_LISTED else [])]
        say(f"note: left out, of earlier runs: {', '.join(listed)}", always=True)
