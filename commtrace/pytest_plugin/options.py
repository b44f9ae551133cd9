"""Options of the plugin, declared once: flag, ini key, and argument of the marker.

Precedence: the marker, the command line, the ini file, the default. Registration, look-up, help and
the table in docs/testing.md come from `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from commtrace.errors import UsageError

_TRUE = {"1": True, "true": True, "yes": True, "on": True}
_FALSE = {"0": False, "false": False, "no": False, "off": False, "": False}
OFF, INCREASE, SAME = "off", "increase", "same"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        values: its choices, `bool`, `int`, or `str` for a folder.
        of_marker: the marker takes it too.
        of_ini: the ini file may set it.
    """

    name: str
    default: Any
    values: Any
    help: str
    of_marker: bool = False
    of_ini: bool = True
    metavar: str = ""

    @property
    def flag(self) -> str:
        """Flag of the command line."""
        return f"--comms-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """Key in the ini file, if any."""
        return f"comms_{self.name}" if self.of_ini else ""

    @property
    def marker(self) -> str:
        """Argument of the marker, if any."""
        return self.name if self.of_marker else ""

    def value_of(self, value: Any, *, caller: str) -> Any:
        """Convert a given value to the option's type.

        Raises:
            UsageError: the option does not accept the value.
        """
        if self.values is bool:
            known = {**_TRUE, **_FALSE}
            text = str(value).lower()
            if text in known:
                return known[text]
            choices = "true or false"
        elif self.values is int:
            if str(value).isdecimal():
                return int(value)
            choices = "a number"
        elif self.values is str:
            return str(value)
        else:
            if value is True or value is False:
                value = self.values[-1] if value else OFF
            if value in self.values:
                return value
            choices = ", ".join(self.values)
        raise UsageError(f"{caller} is {value!r}", why=f"it takes {choices}")


OPTIONS = (
    Option(
        "detail",
        "op",
        ("op", "collective"),
        "record operators and communication (op), or communication only (collective)",
        of_marker=True,
    ),
    Option("stacks", False, bool, "record the full Python stack of each call", of_marker=True),
    Option(
        "all", False, bool, "record every test, including those without the marker or the fixture"
    ),
    Option(
        "consistent",
        False,
        bool,
        "fail a test whose ranks are inconsistent; a single rank passes",
        of_marker=True,
    ),
    Option(
        "timeout",
        600,
        int,
        "seconds after which processes that a recorded test has started are ended, with a report "
        "of where they hang and parted; 0 for no limit",
        of_marker=True,
        metavar="S",
    ),
    Option(
        "baseline",
        OFF,
        (OFF, INCREASE, SAME),
        "compare with the baseline: fail on more calls or bytes (increase) or on any change (same)",
        of_marker=True,
    ),
    Option(
        "baseline_dir",
        "",
        str,
        "folder of the baselines, relative to the root; the default is beside each test file",
        metavar="DIR",
    ),
    Option(
        "update",
        False,
        bool,
        "write the baselines of the recorded tests that run and pass",
        of_ini=False,
    ),
    Option(
        "report",
        "",
        str,
        "save the trace and the page of each recorded test that fails",
        metavar="DIR",
    ),
    Option("summary", False, bool, "print a summary of each recorded test at the end"),
    Option("rows", 20, int, "maximum number of rows of the table in a failure", metavar="N"),
)
BY_NAME = {option.name: option for option in OPTIONS}
OF_MARKER = tuple(option.marker for option in OPTIONS if option.marker)
_PREFIX = "comms_option_"


def register(parser: pytest.Parser) -> None:
    """Register all options with pytest."""
    group = parser.getgroup("comms", "communication of distributed tests (commtrace)")
    for option in OPTIONS:
        options: dict[str, Any] = {"dest": _PREFIX + option.name, "help": option.help}
        if option.values is bool:
            options |= {"action": "store_const", "const": True, "default": None}
        elif isinstance(option.values, tuple):
            options |= {"choices": option.values, "default": None}
        else:
            options |= {"metavar": option.metavar, "default": None}
        group.addoption(option.flag, **options)
        if option.ini:
            parser.addini(option.ini, option.help, type="string", default=None)
    group.addoption(
        "--fail-on-comms-increase",
        dest=_PREFIX + "baseline",
        action="store_const",
        const=INCREASE,
        help="short for --comms-baseline=increase",
    )


def setting(config: pytest.Config, name: str, marked: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an option, for a test whose markers have the arguments `marked`.

    Raises:
        UsageError: the option does not accept the value.
    """
    option = BY_NAME[name]
    if marked and option.marker in marked:
        return option.value_of(marked[option.marker], caller=f"{option.marker}= of a marker")
    value = config.getoption(_PREFIX + name)
    if value is not None:
        return option.value_of(value, caller=option.flag)
    value = config.getini(option.ini) if option.ini else None
    if value not in (None, ""):
        return option.value_of(value, caller=f"{option.ini} of the ini file")
    return option.default
