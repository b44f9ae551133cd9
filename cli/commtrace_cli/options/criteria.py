"""Conditions under which a command exits with code 1."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from commtrace_cli.options.declare import option


class Metric(str, Enum):
    """Metrics that must not grow from one run to another."""

    CALLS = "calls"
    BYTES = "bytes"
    TIME = "time"


FailOnIncrease = Annotated[
    list[Metric] | None,
    option(
        "--fail-on-increase WHAT",
        "Exit with code 1 if the total of calls, bytes or time grew. May be repeated.",
    ),
]
FailOn = Annotated[
    list[str] | None,
    option(
        "--fail-on RULE",
        "Exit with code 1 if this rule, or `any` rule, has a finding. May be repeated.",
    ),
]
Tolerance = Annotated[
    float, option("--tolerance PART", "Allowed growth as a fraction: 0.1 is 10%.", min=0.0)
]
