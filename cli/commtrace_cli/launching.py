"""Options and commands shared by `commtrace run` and `commtrace record`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from commtrace.errors import UsageError
from commtrace.process_options import AUTO_VARIABLE, RUN_SUFFIX, ProcessOptions, ring_bytes
from commtrace.settings import DETAILS, LIBRARIES_VARIABLE, settings_of
from commtrace_cli.options import Detail, ValueLevel


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
    own = [sys.executable, *unbuffered, "-m", "commtrace.in_place"]
    return [*own, *option, str(program.script), *program.arguments]


def run_on_nodes(
    program: Program,
    output: Path,
    options: ProcessOptions,
    launcher_options: Mapping[str, str],
    timeout_s: float | None,
) -> NoReturn:
    """Replace this process by torchrun's agent, whose ranks record themselves.

    Raises:
        UsageError: the output is no folder, or there is a limit on the time.
    """
    check_run_folder(output)
    if timeout_s is not None:
        raise UsageError(
            f"cannot limit the time of {program.script}",
            found=f"--timeout with {next(iter(launcher_options))}",
            why="torchrun starts the ranks of several nodes, and has no such limit",
            attempt="a timeout of the process group, or of the batch system",
        )
    agent = [sys.executable, "-m", "torch.distributed.run"]
    words = [word for pair in launcher_options.items() for word in pair]
    own = command_in_place(program, by_torchrun=True)
    command = [*agent, *words, "--nproc-per-node", str(program.nproc), "--no-python", *own]
    os.execve(sys.executable, command, os.environ | variables_in_place(output, options))


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
