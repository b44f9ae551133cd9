"""Arguments and options of all commands, declared once; a command lists those it takes.

The file exceeds the usual length, because one place has the names and helps of all options.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commtrace import __version__
from commtrace.errors import UsageError
from commtrace.exporters import FORMATS
from commtrace.launchers import launched_rank
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


def _one_of(*names: str) -> Callable[[str], list[str]]:
    """Return the completion of one of some names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


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
        launched = launched_rank(os.environ)
        if launched and launched.rank:  # the first rank says it for all
            continue
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


class ValueLevel(str, Enum):
    """Levels at which the values of tensors are recorded."""

    MODULE = "module"
    OP = "op"


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


def _argument(metavar: str, help: str, **more: Any) -> Any:
    """Declare an argument, without a note on its default."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def _option(usage: str, help: str, **more: Any) -> Any:
    """Declare an option by its names and the word for its value: `--limit N`, `--force -f`."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :])
    return typer.Option(*names, metavar=metavar or None, help=help, **more)


Trace = Annotated[
    Path,
    _argument(
        "TRACE",
        "A run.json, the folder RUN.comm of a run, or the spools of an interrupted one.",
        autocompletion=_traces,
    ),
]
Parts = Annotated[
    list[Path],
    _argument(
        "PART...",
        "Folders RUN.comm, folders of spools, spools and run files, of any nodes.",
        autocompletion=_traces,
    ),
]
Sources = Annotated[list[Path], _argument("FILE...", "One file per rank, or folders of them.")]
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
    Path, _argument("BASELINE", "The trace to compare with.", autocompletion=_traces)
]
RightRun = Annotated[
    Path, _argument("RIGHT", "The run that is taken for right.", autocompletion=_traces)
]
OtherRun = Annotated[
    Path, _argument("OTHER", "The run that is compared with it.", autocompletion=_traces)
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
    _argument(
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
Interval = Annotated[
    float,
    typer.Option(
        "--interval", metavar="SECONDS", min=0.1, max=3600, help="Time between two refreshes."
    ),
]
Once = Annotated[bool, typer.Option("--once", metavar="", help="Show the state once, and exit.")]
AsJsonLines = Annotated[
    bool, typer.Option("--json", metavar="", help="At each refresh, one line of JSON.")
]
OnHang = Annotated[
    str | None,
    typer.Option(
        "--on-hang",
        metavar="DURATION",
        help="Exit with code 4 once a rank has been in a call for this long, such as 60s or 5m.",
        show_default=False,
    ),
]
OnStraggler = Annotated[
    str | None,
    typer.Option(
        "--on-straggler",
        metavar="SHARE",
        help="Exit with code 5 once all others have waited for one rank in this part of the last "
        "ten seconds, such as 20%, and three times as long as for any other.",
        show_default=False,
    ),
]
OnMismatch = Annotated[
    bool,
    typer.Option(
        "--on-mismatch",
        metavar="",
        help="Exit with code 6 once members of a group disagree in a collective.",
    ),
]
Exec = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="COMMAND",
        help="With an alarm: run this shell command before exiting.",
        show_default=False,
    ),
]
Serve = Annotated[
    bool,
    typer.Option(
        "--serve",
        metavar="",
        help="Also show the state as a page, on this machine only, at the address that is printed.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="PORT", min=0, max=65535, help="Port of the page; 0 for any free one."
    ),
]
DumpRanks = Annotated[
    str | None,
    typer.Option(
        "--dump",
        metavar="RANKS",
        help="Ask these ranks, such as 0,3-5 or all, for their stacks and calls in flight, print "
        "them and exit; with an alarm, when it goes off.",
        show_default=False,
    ),
]
DiffOutput = Annotated[
    Path | None,
    _option(
        "--output -o FILE",
        "Write the comparison as an HTML page; by default, it is printed in the terminal.",
    ),
]
ComparisonOutput = Annotated[
    Path | None,
    _option(
        "--output -o FILE",
        "Write an HTML page with the verdict, a map of divergence by module and step, and tables.",
        show_default=False,
    ),
]
FailOnIncrease = Annotated[
    list[Metric] | None,
    _option(
        "--fail-on-increase WHAT",
        "Exit with code 1 if the total of calls, bytes or time grew. May be repeated.",
    ),
]
FailOn = Annotated[
    list[str] | None,
    _option(
        "--fail-on RULE",
        "Exit with code 1 if this rule, or `any` rule, has a finding. May be repeated.",
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
    float, _option("--tolerance PART", "Allowed growth as a fraction: 0.1 is 10%.", min=0.0)
]
TableName = Annotated[
    str | None,
    _argument(
        "NAME", "Name of the table; by default, all tables are listed.", autocompletion=_tables
    ),
]
RawTable = Annotated[
    str,
    _argument(
        "TABLE",
        f"{', '.join(list(TABLES)[:-1])} or {list(TABLES)[-1]}.",
        autocompletion=_one_of(*TABLES),
    ),
]
Where = Annotated[
    list[str] | None,
    _option(
        "--where CONDITION",
        "Only rows that satisfy the condition: COLUMN, one of = != < <= > >= or ~ (contains), "
        "VALUE. May be repeated; all conditions must hold.",
    ),
]
Columns = Annotated[
    list[str] | None, _option("--columns NAMES", "Only these columns, separated by `,`.")
]
Limit = Annotated[int | None, _option("--limit N", "Maximum number of rows.", min=1)]
Call = Annotated[
    str,
    _argument(
        "CALL",
        "RANK:ID or ID of a call, `longest` (longest blocked time), or `biggest`.",
        autocompletion=_one_of("longest", "biggest"),
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
RanksOfDemo = Annotated[int, _option("--nproc -n N", "Number of ranks: 1, 2 or 4.")]
SequenceParallel = Annotated[bool, _option("--sequence-parallel", "Use sequence parallelism, too.")]
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
Values = Annotated[
    bool,
    typer.Option(
        "--values",
        help="Keep fingerprints of tensors too, for `compare` and `check`.",
    ),
]
ValuesLevel = Annotated[
    ValueLevel | None,
    typer.Option(
        "--values-level",
        help="Keep them of modules and parameters only, or of the results of operators too "
        "[default: op].",
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
    Path | None,
    _option(
        "--output -o FILE",
        "The run file to write, or a folder RUN.comm into which the parts are copied. By default "
        "run.json, or for one folder RUN.comm its dataset.",
        show_default=False,
    ),
]
RunDataset = Annotated[
    bool,
    _option(
        "--dataset",
        "Prepare a dataset in the folder RUN.comm at the end, as `commtrace merge RUN.comm` does. "
        "A run of millions of calls has one without being asked, if pyarrow is installed.",
    ),
]
AsDataset = Annotated[
    bool,
    _option(
        "--dataset",
        "Prepare a dataset in the folder: in the one that is given, or in that of -o RUN.comm. "
        "Needs the package pyarrow.",
    ),
]
Workers = Annotated[
    int | None,
    _option(
        "--workers N",
        "Processes that prepare the dataset, each of which holds one rank in memory. By default "
        "one for each core.",
        min=1,
        show_default=False,
    ),
]
AnalysisWorkers = Annotated[
    int | None,
    _option(
        "--workers N",
        "Processes that analyse a run which is read in parts, each of which holds one part in "
        "memory. By default one for each core.",
        min=1,
        show_default=False,
    ),
]
Dask = Annotated[
    str | None,
    _option(
        "--dask ADDRESS",
        "Scheduler of a Dask cluster, such as tcp://host:8786, whose workers analyse the run. They "
        "must find its folder under the same path. Needs the package distributed.",
        show_default=False,
    ),
]
Output = Annotated[Path, _option("--output -o FILE", "The file to write.")]
To = Annotated[ExportFormat, _option("--to", "The format to write.")]
ExportOutput = Annotated[
    Path | None,
    _option(
        "--output -o PATH",
        "The file or folder to write; by default named after the trace, in the current folder.",
    ),
]
PictureOutput = Annotated[
    Path | None,
    _option(
        "--output -o FILE",
        "Write a picture: .html is self-contained, .json is plotly's; .png, .svg and .pdf "
        "need the package kaleido. By default, the picture is drawn in the terminal.",
    ),
]
ChosenRanks = Annotated[str | None, _option("--ranks RANKS", "Only these ranks: `0,1` or `0-3,8`.")]
Link = Annotated[
    list[str] | None,
    _option(
        "--link SPEED",
        "Speed of a rank's link, `400 Gbit/s` or `50 GB/s`, to compare busbw with; "
        "`dp=400 Gbit/s` for the groups of a mesh axis, or for a group. May be repeated. By "
        "default that of the settings, else the best busbw of the run.",
    ),
]
FlameWidth = Annotated[
    Width,
    _option(
        "--by",
        "Measure of the widths: bytes sent, time from issue to completion, blocked time, calls.",
    ),
]
Phase = Annotated[
    str,
    _option(
        "--phase PHASE",
        "Only forward, backward, recompute, optimizer or other.",
        show_default=False,
    ),
]
Force = Annotated[bool, _option("--force -f", "Overwrite an existing output.")]
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
    _option("--by TABLE", "Only this table: kind, phase, module or op. May be repeated."),
]
Window = Annotated[
    str | None,
    _option(
        "--window FROM:TO",
        "Only this time window, relative to the start of the run: 1.5s:2s, 250ms: or :80us.",
    ),
]
Steps = Annotated[str | None, _option("--steps FIRST:LAST", "Only these steps: 3:5, or 4.")]
Gradients = Annotated[
    bool,
    _option("--gradients", "Also how each gradient was reduced, of a run recorded with --values."),
]
Rows = Annotated[int, _option("--rows N", "Maximum number of rows of a table.", min=1)]
AsJson = Annotated[bool, _option("--json", "Exact numbers as JSON.", callback=_one_format)]
AsCsv = Annotated[
    bool,
    _option(
        "--csv",
        "Exact numbers of one table as CSV. Text that a spreadsheet would evaluate as a "
        "formula is prefixed with an apostrophe.",
        callback=_one_format,
    ),
]
Version = Annotated[
    bool, _option("--version", "Print the version and exit.", callback=_version, is_eager=True)
]
