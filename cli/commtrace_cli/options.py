"""Arguments and options of all commands, declared once; a command lists those it takes.

The file exceeds the usual length, because one place has the names and helps of all options.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commtrace import __version__
from commtrace.errors import UsageError
from commtrace.exporters import FORMATS
from commtrace.schema import TABLES
from commtrace_cli.terminal import say, write


def _traces(incomplete: str) -> list[str]:
    """Return the traces whose path has this prefix, and folders on the way to one."""
    found = sorted(Path(incomplete).parent.glob("*")) if incomplete else sorted(Path().glob("*"))
    if incomplete.endswith("/"):
        found = sorted(Path(incomplete).glob("*"))
    named = [(str(path), path) for path in found]
    return [
        text if path.suffix in _TRACE_SUFFIXES else f"{text}/"
        for text, path in named
        if text.startswith(incomplete) and (path.suffix in _TRACE_SUFFIXES or path.is_dir())
    ]


def _tables(incomplete: str) -> list[str]:
    from commtrace.analyze import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]


def _raw_tables(incomplete: str) -> list[str]:
    return [name for name in TABLES if name.startswith(incomplete)]


def _calls(incomplete: str) -> list[str]:
    return [name for name in ("longest", "biggest") if name.startswith(incomplete)]


def _one_format(context: typer.Context, value: bool) -> bool:
    if value and (context.params.get("as_json") or context.params.get("as_csv")):
        raise UsageError("cannot print JSON and CSV at once", attempt="one of --json and --csv")
    return value


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
        command = f"commtrace {context.info_name}"
        text = f"note: {name} is passed to {script}; put it before {script} for `{command}`"
        say(text, always=True)
    return arguments


def _version(value: bool) -> None:
    if value:
        write(f"commtrace {__version__}\n")
        raise typer.Exit


_TRACE_SUFFIXES = (".json", ".comm", ".spools", ".spool")


class Detail(str, Enum):
    """Amount of detail to record."""

    OP = "op"
    COLLECTIVE = "collective"


class Grouping(str, Enum):
    """Groupings of a summary."""

    KIND = "kind"
    PHASE = "phase"
    MODULE = "module"
    OP = "op"


# Type checkers cannot follow an enumeration that is created at run time.
if TYPE_CHECKING:
    ExportFormat = Enum
else:
    ExportFormat = Enum("ExportFormat", {name.upper(): name for name in FORMATS}, type=str)


class Width(str, Enum):
    """Measures that give the width of a flame graph's blocks."""

    WIRE_BYTES = "wire_bytes"
    TIME = "time"
    EXPOSED = "exposed"
    COUNT = "count"


class Metric(str, Enum):
    """Metrics that must not grow from one run to another."""

    CALLS = "calls"
    BYTES = "bytes"
    TIME = "time"


Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A run.json, the folder RUN.comm of a run, or the spools of an interrupted one.",
        show_default=False,
        autocompletion=_traces,
    ),
]
Parts = Annotated[
    list[Path],
    typer.Argument(
        metavar="PART...",
        help="Folders RUN.comm, folders of spools, spools and run files, of any nodes.",
        show_default=False,
        autocompletion=_traces,
    ),
]
Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...", help="One file per rank, or folders of them.", show_default=False
    ),
]
Baseline = Annotated[
    Path,
    typer.Argument(
        metavar="BASELINE",
        help="The trace to compare with.",
        show_default=False,
        autocompletion=_traces,
    ),
]
Compared = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="One or more traces to compare with the baseline.",
        show_default=False,
        autocompletion=_traces,
    ),
]
DiffOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the comparison as an HTML page; by default, it is printed in the terminal.",
        show_default=False,
    ),
]
FailOnIncrease = Annotated[
    list[Metric] | None,
    typer.Option(
        "--fail-on-increase",
        metavar="WHAT",
        help="Exit with code 1 if the total of calls, bytes or time grew. May be repeated.",
        show_default=False,
    ),
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="RULE",
        help="Exit with code 1 if this rule, or `any` rule, has a finding. May be repeated.",
        show_default=False,
    ),
]
Libraries = Annotated[
    list[str] | None,
    typer.Option(
        "--library",
        metavar="PACKAGE",
        help="A package whose lines are not attributed to the program, such as a framework. "
        "May be repeated.",
        show_default=False,
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance", metavar="PART", min=0.0, help="Allowed growth as a fraction: 0.1 is 10%."
    ),
]
TableName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Name of the table; by default, all tables are listed.",
        show_default=False,
        autocompletion=_tables,
    ),
]
RawTable = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help=f"{', '.join(list(TABLES)[:-1])} or {list(TABLES)[-1]}.",
        show_default=False,
        autocompletion=_raw_tables,
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only rows that satisfy the condition: COLUMN, one of = != < <= > >= or ~ (contains), "
        "VALUE. May be repeated; all conditions must hold.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Only these columns, separated by `,`.",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="Maximum number of rows.", show_default=False),
]
Call = Annotated[
    str,
    typer.Argument(
        metavar="CALL",
        help="RANK:ID or ID of a call, `longest` (longest blocked time), or `biggest`.",
        show_default=False,
        autocompletion=_calls,
    ),
]
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
Ranks = Annotated[
    int,
    typer.Option("--nproc", "-n", metavar="N", help="Number of ranks to start on this machine."),
]
RanksOfDemo = Annotated[
    int, typer.Option("--nproc", "-n", metavar="N", help="Number of ranks: 1, 2 or 4.")
]
SequenceParallel = Annotated[
    bool,
    typer.Option("--sequence-parallel", metavar="", help="Use sequence parallelism, too."),
]
IsModule = Annotated[
    bool,
    typer.Option("-m", metavar="", help="SCRIPT is the name of a module, as after `python -m`."),
]
MaxCalls = Annotated[
    int | None,
    typer.Option(
        "--max-calls",
        metavar="N",
        min=1,
        help="Keep this many calls of each rank, and ten times as many operators; further ones are "
        "counted.",
        show_default=False,
    ),
]
Every = Annotated[
    int | None,
    typer.Option(
        "--every",
        metavar="N",
        min=1,
        help="Record every Nth step only, and what precedes the first one.",
        show_default=False,
    ),
]
Ring = Annotated[
    str | None,
    typer.Option(
        "--ring",
        metavar="SIZE",
        help="Keep only the last so much of each rank's recording, such as 64MB or 1GiB.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="End all ranks if one runs longer than this, and print where each of them was.",
        show_default=False,
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        "--nnodes",
        metavar="N",
        help="Number of nodes, or MIN:MAX; torchrun starts the ranks of each.",
        show_default=False,
    ),
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        "--node-rank",
        metavar="N",
        min=0,
        help="Number of this node, from 0.",
        show_default=False,
    ),
]
MasterAddress = Annotated[
    str | None,
    typer.Option(
        "--master-addr",
        metavar="HOST",
        help="Host of node 0, at which the ranks meet.",
        show_default=False,
    ),
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        metavar="PORT",
        min=1,
        max=65535,
        help="Port on that host.",
        show_default=False,
    ),
]
RendezvousBackend = Annotated[
    str | None,
    typer.Option(
        "--rdzv-backend",
        metavar="NAME",
        help="Rendezvous of torchrun, such as c10d, for nodes that come and go.",
        show_default=False,
    ),
]
RendezvousEndpoint = Annotated[
    str | None,
    typer.Option(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="Address of the rendezvous.",
        show_default=False,
    ),
]
RendezvousId = Annotated[
    str | None,
    typer.Option(
        "--rdzv-id",
        metavar="ID",
        help="Identity of the run, the same on all nodes.",
        show_default=False,
    ),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        "--max-restarts",
        metavar="N",
        min=0,
        help="How often torchrun restarts the ranks if one fails.",
        show_default=False,
    ),
]
RunFolderOutput = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="RUN.comm", help="The folder to which each rank adds its part."
    ),
]
RunOutput = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The run file to write, or a folder RUN.comm that keeps the part of each rank.",
    ),
]
MergeOutput = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The run file to write, or a folder RUN.comm into which the parts are copied.",
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")]
To = Annotated[ExportFormat, typer.Option("--to", help="The format to write.", show_default=False)]
ExportOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The file or folder to write; by default named after the trace, in the current "
        "folder.",
        show_default=False,
    ),
]
PictureOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write a picture: .html is self-contained, .json is plotly's; .png, .svg and .pdf "
        "need the package kaleido. By default, the picture is drawn in the terminal.",
        show_default=False,
    ),
]
ChosenRanks = Annotated[
    str | None,
    typer.Option(
        "--ranks", metavar="RANKS", help="Only these ranks: `0,1` or `0-3,8`.", show_default=False
    ),
]
Link = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        metavar="SPEED",
        help="Speed of a rank's link, `400 Gbit/s` or `50 GB/s`, to compare busbw with; "
        "`dp=400 Gbit/s` for the groups of a mesh axis, or for a group. May be repeated. By "
        "default that of the settings, else the best busbw of the run.",
        show_default=False,
    ),
]
FlameWidth = Annotated[
    Width,
    typer.Option(
        "--by",
        help="Measure of the widths: bytes sent, time from issue to completion, blocked time, "
        "calls.",
    ),
]
Phase = Annotated[
    str,
    typer.Option(
        "--phase",
        metavar="PHASE",
        help="Only forward, backward, recompute, optimizer or other.",
        show_default=False,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", "-f", metavar="", help="Overwrite an existing output.")
]
HowMuch = Annotated[
    Detail | None,
    typer.Option(
        "--detail",
        help="op: operators and collectives. collective: collectives only, with little overhead. "
        "The default is set by `[tool.commtrace]` in pyproject.toml, otherwise op.",
        show_default=False,
    ),
]
Stacks = Annotated[
    bool, typer.Option("--stacks", metavar="", help="Record the full Python stack of each call.")
]
Groupings = Annotated[
    list[Grouping] | None,
    typer.Option(
        "--by",
        metavar="TABLE",
        help="Only this table: kind, phase, module or op. May be repeated.",
        show_default=False,
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="FROM:TO",
        help="Only this time window, relative to the start of the run: 1.5s:2s, 250ms: or :80us.",
        show_default=False,
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="FIRST:LAST", help="Only these steps: 3:5, or 4.", show_default=False
    ),
]
Rows = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="Maximum number of rows of a table.")
]
AsJson = Annotated[
    bool,
    typer.Option("--json", metavar="", callback=_one_format, help="Exact numbers as JSON."),
]
AsCsv = Annotated[
    bool,
    typer.Option(
        "--csv",
        metavar="",
        callback=_one_format,
        help="Exact numbers of one table as CSV. Text that a spreadsheet would evaluate as a "
        "formula is prefixed with an apostrophe.",
    ),
]
Version = Annotated[
    bool,
    typer.Option(
        "--version",
        metavar="",
        callback=_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
]
