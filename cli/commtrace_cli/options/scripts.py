"""The program that a command starts, and its ranks on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from commtrace.errors import UsageError
from commtrace.launched_rank import launched_rank
from commtrace_cli.options.declare import option
from commtrace_cli.terminal import say


def _belonging_before(context: typer.Context, arguments: list[str] | None) -> list[str] | None:
    """Return the script's own arguments; options of the command must precede SCRIPT."""
    names = {name: each for each in context.command.params for name in each.opts}
    options = [names.get(word.partition("=")[0]) for word in arguments or ()]
    misplaced = {each.name: each for each in options if each and each.name not in context.params}
    script = context.params.get("script")
    for each in misplaced.values():
        name = max(each.opts, key=len)
        if each.required:
            raise UsageError(
                f"cannot run {script}",
                found=f"{name} after {script}",
                why="arguments after SCRIPT belong to the script",
                attempt=f"commtrace {context.info_name} {name} {each.metavar} {script}",
            )
        launched = launched_rank(os.environ)
        if launched and launched.rank:  # the first rank says it for all
            continue
        command = f"commtrace {context.info_name}"
        text = f"note: {name} is passed to {script}; put it before {script} for `{command}`"
        say(text, always=True)
    return arguments


Script = Annotated[
    Path,
    typer.Argument(metavar="SCRIPT", help="The program that each rank runs.", show_default=False),
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS",
        help="Arguments and options of the script.",
        show_default=False,
        callback=_belonging_before,
    ),
]
IsModule = Annotated[
    bool,
    typer.Option("-m", metavar="", help="SCRIPT is the name of a module, as after `python -m`."),
]
Ranks = Annotated[
    int,
    typer.Option("--nproc", "-n", metavar="N", help="Number of ranks to start on this machine."),
]
RanksOfDemo = Annotated[int, option("--nproc -n N", "Number of ranks: 1, 2 or 4.")]
SequenceParallel = Annotated[bool, option("--sequence-parallel", "Use sequence parallelism, too.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="End all ranks if a rank runs longer than this, and print where each was.",
        show_default=False,
    ),
]
