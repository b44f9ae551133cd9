"""The rows, calls, ranks and times that a command shows."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from commtrace.schema import TABLES
from commtrace_cli.options.declare import argument, one_of, option


class Grouping(str, Enum):
    """Groupings of a summary."""

    KIND = "kind"
    PHASE = "phase"
    MODULE = "module"
    OP = "op"
    SOURCE = "source"


class Width(str, Enum):
    """Measures that give the width of a flame graph's blocks."""

    WIRE_BYTES = "wire_bytes"
    TIME = "time"
    EXPOSED = "exposed"
    COUNT = "count"


def _tables(incomplete: str) -> list[str]:
    from commtrace.analyze import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]


TableName = Annotated[
    str | None,
    argument(
        "NAME", "Name of the table; by default, all tables are listed.", autocompletion=_tables
    ),
]
RawTable = Annotated[
    str,
    argument(
        "TABLE",
        f"{', '.join(list(TABLES)[:-1])} or {list(TABLES)[-1]}.",
        autocompletion=one_of(*TABLES),
    ),
]
Where = Annotated[
    list[str] | None,
    option(
        "--where CONDITION",
        "Only rows that satisfy the condition: COLUMN, one of = != < <= > >= or ~ (contains), "
        "VALUE. May be repeated; all conditions must hold.",
    ),
]
Columns = Annotated[
    list[str] | None, option("--columns NAMES", "Only these columns, separated by `,`.")
]
Limit = Annotated[int | None, option("--limit N", "Maximum number of rows.", min=1)]
Rows = Annotated[int, option("--rows N", "Maximum number of rows of a table.", min=1)]
Call = Annotated[
    str,
    argument(
        "CALL",
        "RANK:ID or ID of a call, `longest` (longest blocked time), or `biggest`.",
        autocompletion=one_of("longest", "biggest"),
    ),
]
ChosenRanks = Annotated[str | None, option("--ranks RANKS", "Only these ranks: `0,1` or `0-3,8`.")]
Phase = Annotated[
    str,
    option(
        "--phase PHASE",
        "Only forward, backward, recompute, optimizer or other.",
        show_default=False,
    ),
]
Window = Annotated[
    str | None,
    option(
        "--window FROM:TO",
        "Only this time window, relative to the start of the run: 1.5s:2s, 250ms: or :80us.",
    ),
]
Steps = Annotated[str | None, option("--steps FIRST:LAST", "Only these steps: 3:5, or 4.")]
Groupings = Annotated[
    list[Grouping] | None,
    option("--by TABLE", "Only this table: kind, phase, module, op or source. May be repeated."),
]
FlameWidth = Annotated[
    Width,
    option(
        "--by",
        "Measure of the widths: bytes sent, time from issue to completion, blocked time, calls.",
    ),
]
Gradients = Annotated[
    bool,
    option("--gradients", "Also how each gradient was reduced, of a run recorded with --values."),
]
Link = Annotated[
    list[str] | None,
    option(
        "--link SPEED",
        "Speed of a rank's link, `400 Gbit/s` or `50 GB/s`, to compare busbw with; "
        "`dp=400 Gbit/s` for the groups of a mesh axis, or for a group. May be repeated. By "
        "default, the speed in the settings, else the best busbw of the run.",
    ),
]
