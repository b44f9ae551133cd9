"""`commtrace demo`: records, prints and draws a small training program that is included.

The program is examples/train_tp.py in a checkout, and the same file beside this module in a wheel.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from commtrace.errors import UsageError, require_torch
from commtrace_cli.options import outputs, scripts
from commtrace_cli.report import report
from commtrace_cli.run import run
from commtrace_cli.summary import summary
from commtrace_cli.terminal import check_output, say

EXAMPLE = """
Examples:

- `commtrace demo`
- `commtrace demo --nproc 2 --sequence-parallel -o sp.json`
"""

NAME = "train_tp.py"
PLACES = (Path(__file__).parent / "examples", Path(__file__).parents[2] / "examples")
"""Folders that may hold the program: in an installed wheel, in a checkout."""

NUM_HEADS, NUM_STEPS = 4, 10


def demo(
    nproc: scripts.RanksOfDemo = 4,
    sequence_parallel: scripts.SequenceParallel = False,
    output: outputs.Output = Path("demo.json"),
    force: outputs.Force = False,
) -> None:
    """Train a small language model on N local ranks; record, summarize and draw it.

    Takes some seconds and needs no network. The commands that it runs are printed, for use with
    another program: `run`, `summary` and `report`.
    """
    require_torch("commtrace demo")
    if nproc < 1 or NUM_HEADS % nproc:
        raise UsageError(
            f"cannot run the demo on {nproc} ranks",
            why=f"the {NUM_HEADS} heads of its model must divide evenly",
            attempt="--nproc 1, 2 or 4",
        )
    page = output.with_suffix(".html")
    for written in (output, page):
        check_output(written, force=force)
    script = program()
    arguments = ["--steps", str(NUM_STEPS), *(["--sequence-parallel"] * sequence_parallel)]
    _announce("run", "--nproc", nproc, "-o", output, script, *arguments)
    run(script, nproc, arguments, output=output, force=force)
    _announce("summary", output)
    summary(output)
    _announce("report", output, "-o", page)
    report(output, output=page, force=force)


def program() -> Path:
    """Return the path of the demo program.

    Raises:
        UsageError: the installation lacks it.
    """
    for place in PLACES:
        if (place / NAME).is_file():
            return place / NAME
    raise UsageError(
        "cannot run the demo",
        found=f"no {NAME} in {' or '.join(map(str, PLACES))}",
        attempt="install commtrace again",
    )


def _announce(*words: object) -> None:
    say(f"$ {shlex.join(['commtrace', *map(str, words)])}", always=True)
