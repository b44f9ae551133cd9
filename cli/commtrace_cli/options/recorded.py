"""Options of a recording: its detail, and the amount that is kept."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Detail(str, Enum):
    """Amount of detail to record."""

    OP = "op"
    COLLECTIVE = "collective"


class ValueLevel(str, Enum):
    """Levels at which the values of tensors are recorded."""

    MODULE = "module"
    OP = "op"


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
MaxCalls = Annotated[
    int | None,
    typer.Option(
        "--max-calls",
        metavar="N",
        min=1,
        help="Keep this many calls of each rank, and ten times as many operators; the rest is "
        "only counted.",
        show_default=False,
    ),
]
Every = Annotated[
    int | None,
    typer.Option(
        "--every",
        metavar="N",
        min=1,
        help="Record every Nth step only, and what precedes the first step.",
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
