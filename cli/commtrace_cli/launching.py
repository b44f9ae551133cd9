"""Options and commands shared by `commtrace run` and `commtrace record`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from commtrace.errors import UsageError
from commtrace.process_options import AUTO_VARIABLE, RUN_SUFFIX, ProcessOptions, ring_bytes
from commtrace.settings import DETAILS, LIBRARIES_VARIABLE, settings_of
from commtrace_cli.options.recorded import Detail, ValueLevel


@dataclass(frozen=True, slots=True)
class Program:
    """A script, or a module, with its arguments and the number of ranks per node."""

    script: Path
    arguments: tuple[str, ...]
    is_module: bool
    nproc: int


def chosen_options(
    detail: Detail | None,
    stacks: bool,
    max_calls: int | None,
    every: int | None,
    ring: str | None,
    libraries: Sequence[str] | None,
    values: bool,
    level: ValueLevel | None,
) -> ProcessOptions:
    """Return the options of each rank's recording; libraries go into the environment."""
    if libraries:
        known = filter(None, [os.environ.get(LIBRARIES_VARIABLE), *libraries])
        os.environ[LIBRARIES_VARIABLE] = ",".join(known)  # which the ranks inherit
    chosen = detail.value if detail else settings_of().detail
    of_values = (level or ValueLevel.OP).value if values or level else ""
    kept = ring_bytes(ring)
    return ProcessOptions(chosen or DETAILS[0], stacks, max_calls, every, kept, of_values)


def variables_in_place(folder: Path, options: ProcessOptions) -> dict[str, str]:
    """Return the variables with which a process records itself into the folder of a run."""
    return {AUTO_VARIABLE: str(folder.absolute()), **options.variables()}


def command_in_place(program: Program, *, by_torchrun: bool) -> list[str]:
    """Return the command that runs a program in its own process, recorded."""
    option = ["-m"] if program.is_module else []
    # As torchrun starts Python, so that ranks that it ends have written their output.
    unbuffered = ["-u"] if by_torchrun else []
    own = [sys.executable, *unbuffered, "-m", "commtrace.launching.record_program"]
    return [*own, *option, str(program.script), *program.arguments]


def run_on_nodes(
    program: Program,
    output: Path,
    options: ProcessOptions,
    launcher_options: Mapping[str, str],
    *,
    timeout_s: float | None,
    force: bool,
) -> NoReturn:
    """Replace this process by torchrun's agent, whose ranks record themselves.

    Raises:
        UsageError: there is no such script, an option is invalid or not for several nodes, or the
            output is no folder.
    """
    from commtrace.launching.launcher import check_program, check_ranks

    check_run_folder(output)
    first = next(iter(launcher_options))
    if timeout_s is not None:
        raise UsageError(
            f"cannot limit the time of {program.script}",
            found=f"--timeout with {first}",
            why="torchrun starts the ranks of several nodes, and has no such limit",
            attempt="a timeout of the process group, or of the batch system",
        )
    if force:
        raise UsageError(
            f"cannot overwrite {output}",
            found=f"--force with {first}",
            why="nodes may share the folder, and none knows that the others have not begun",
            attempt="without --force: earlier recordings are kept, and commands read the latest",
        )
    check_program(program.script, is_module=program.is_module)
    check_ranks(program.script, program.nproc)
    _check_nodes(program.script, launcher_options)
    agent = [sys.executable, "-m", "torch.distributed.run"]
    words = [word for pair in launcher_options.items() for word in pair]
    own = command_in_place(program, by_torchrun=True)
    command = [*agent, *words, "--nproc-per-node", str(program.nproc), "--no-python", *own]
    os.execve(sys.executable, command, os.environ | variables_in_place(output, options))


_NODES = re.compile(r"0*(?P<least>[1-9]\d{0,5})(?::0*(?P<most>[1-9]\d{0,5}))?", re.ASCII)
_ENDPOINT = re.compile(r"[^:]+|.+:(?P<port>\d{1,5})", re.ASCII)


def _check_nodes(script: Path, launcher_options: Mapping[str, str]) -> None:
    """Check options of torchrun that it answers with a traceback, or waits for in vain."""
    nodes, node = launcher_options.get("--nnodes", "1"), launcher_options.get("--node-rank", "0")
    endpoint = launcher_options.get("--rdzv-endpoint", "any")
    known, place = _NODES.fullmatch(nodes), _ENDPOINT.fullmatch(endpoint)
    least, most = (int(known[1]), int(known[2] or known[1])) if known else (1, 0)
    refused = (
        (least > most, "--nnodes", nodes, "it is a number of nodes, or the least and the most",
         "--nnodes 2, or 1:4"),
        (int(node) >= most, "--node-rank", node, f"nodes are numbered from 0, and there are {most}",
         f"--node-rank {most - 1}, or a larger --nnodes"),
        (place is None or int(place["port"] or 0) > 65535, "--rdzv-endpoint", endpoint,
         "it is a host, or a host and a port", "--rdzv-endpoint node0:29400"),
    )  # fmt: skip
    for is_wrong, name, value, why, attempt in refused:
        if is_wrong:
            found = f"{name} {value}"
            raise UsageError(
                f"cannot run {script} on these nodes", found=found, why=why, attempt=attempt
            )


def check_run_folder(output: Path) -> None:
    """Check that a path can be the folder of a run.

    Raises:
        UsageError: it has another suffix, or is a file.
    """
    if output.suffix != RUN_SUFFIX:
        raise UsageError(
            f"cannot record in {output}",
            found=f"a name that does not end in {RUN_SUFFIX}",
            why="each rank adds its part to a folder",
            attempt=f"-o {output.with_suffix(RUN_SUFFIX)}",
        )
    if output.exists() and not output.is_dir():
        raise UsageError(f"cannot record in {output}", found="a file", attempt="another folder")
