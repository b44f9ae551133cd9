"""Runs and other files that a command reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commtrace_cli.options.declare import argument

_TRACE_SUFFIXES = (".json", ".comm", ".spools", ".spool")


def _traces(incomplete: str) -> list[str]:
    """Return the traces whose path has this prefix, and folders on the way to them."""
    found = sorted(Path(incomplete).parent.glob("*")) if incomplete else sorted(Path().glob("*"))
    if incomplete.endswith("/"):
        found = sorted(Path(incomplete).glob("*"))
    named = [(str(path), path) for path in found]
    return [
        text if path.suffix in _TRACE_SUFFIXES else f"{text}/"
        for text, path in named
        if text.startswith(incomplete) and (path.suffix in _TRACE_SUFFIXES or path.is_dir())
    ]


Trace = Annotated[
    Path,
    argument(
        "TRACE",
        "A run.json, the folder RUN.comm of a run, or the spools of an interrupted run.",
        autocompletion=_traces,
    ),
]
Parts = Annotated[
    list[Path],
    argument(
        "PART...",
        "Folders RUN.comm, folders of spools, spools and run files, of any nodes.",
        autocompletion=_traces,
    ),
]
Sources = Annotated[list[Path], argument("FILE...", "One file per rank, or folders of them.")]
Recording = Annotated[
    Path | None,
    typer.Option(
        "--recording",
        metavar="RUN",
        help="A recording of the same run, whose calls get the times on devices.",
        show_default=False,
        autocompletion=_traces,
    ),
]
Baseline = Annotated[
    Path, argument("BASELINE", "The trace to compare with.", autocompletion=_traces)
]
RightRun = Annotated[
    Path, argument("RIGHT", "The run that is taken for right.", autocompletion=_traces)
]
OtherRun = Annotated[
    Path, argument("OTHER", "The run that is compared with it.", autocompletion=_traces)
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        metavar="RUN",
        help="A run of the first program in float64, which decides what rounding explains.",
        show_default=False,
        autocompletion=_traces,
    ),
]
Compared = Annotated[
    list[Path],
    argument(
        "TRACE...", "One or more traces to compare with the baseline.", autocompletion=_traces
    ),
]
GrowingRun = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="The folder RUN.comm of a run that is being recorded, or the file run.json that it "
        "is recorded to.",
        show_default=False,
        autocompletion=_traces,
    ),
]
