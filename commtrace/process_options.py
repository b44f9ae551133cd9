"""Options of the recording of a whole process, and their passing through the environment.

    COMMTRACE_DETAIL=collective COMMTRACE_EVERY=100 COMMTRACE=RUN.comm python train.py

`commtrace run` and `commtrace record` set the same variables for the processes that they start.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commtrace.errors import UsageError
from commtrace.settings import DETAILS, settings_of
from commtrace.units import bytes_of_text

AUTO_VARIABLE = "COMMTRACE"
"""Variable with the folder RUN.comm into which processes record themselves."""
RUN_SUFFIX = ".comm"
"""Suffix of the folder of a run."""
DETAIL_VARIABLE = "COMMTRACE_DETAIL"
STACKS_VARIABLE = "COMMTRACE_STACKS"
MAX_CALLS_VARIABLE = "COMMTRACE_MAX_CALLS"
EVERY_VARIABLE = "COMMTRACE_EVERY"
RING_VARIABLE = "COMMTRACE_RING"
VALUES_VARIABLE = "COMMTRACE_VALUES"
VALUE_LEVELS = ("module", "op")
"""Levels at which tensors are observed: modules, or operators too."""
DUMP_SIGNAL_VARIABLE = "COMMTRACE_DUMP_SIGNAL"
DUMP_SIGNAL = "USR2"
"""Signal at which a recorded rank dumps its stacks, unless the variable names another."""
NO_SIGNAL = "none"
LEAST_RING_BYTES = 64_000
A_RING = "it is a size from 64 kB, such as 64MB or 1GiB"
_FLAGS = {"": False, "0": False, "1": True}


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of the recording of a process; see `commtrace.record`."""

    detail: str = DETAILS[0]
    stacks: bool = False
    max_calls: int | None = None
    every: int | None = None
    ring: int | None = None
    values: str = ""

    def variables(self) -> dict[str, str]:
        """Return the variables that pass the options to another process."""
        return {
            DETAIL_VARIABLE: self.detail,
            STACKS_VARIABLE: str(int(self.stacks)),
            MAX_CALLS_VARIABLE: _text(self.max_calls),
            EVERY_VARIABLE: _text(self.every),
            RING_VARIABLE: _text(self.ring),
            VALUES_VARIABLE: self.values,
        }


def options_of(environment: Mapping[str, str]) -> ProcessOptions:
    """Return the options that the environment states, or else the settings, or the defaults.

    Raises:
        UsageError: a variable has a value that it cannot have.
    """
    detail = environment.get(DETAIL_VARIABLE) or settings_of().detail or DETAILS[0]
    if detail not in DETAILS:
        raise _refused(DETAIL_VARIABLE, detail, f"a detail is one of {', '.join(DETAILS)}")
    stacks = environment.get(STACKS_VARIABLE, "")
    if stacks not in _FLAGS:
        raise _refused(STACKS_VARIABLE, stacks, "it is 0 or 1")
    values = environment.get(VALUES_VARIABLE, "")
    if values not in ("", *VALUE_LEVELS):
        raise _refused(VALUES_VARIABLE, values, f"a level is one of {', '.join(VALUE_LEVELS)}")
    return ProcessOptions(
        detail,
        _FLAGS[stacks],
        _number(environment, MAX_CALLS_VARIABLE, "it is a number of calls, from 1"),
        _number(environment, EVERY_VARIABLE, "it is a number of steps, from 1"),
        _ring(environment),
        values,
    )


def _ring(environment: Mapping[str, str]) -> int | None:
    text = environment.get(RING_VARIABLE, "")
    try:
        return ring_bytes(text or None)
    except UsageError as error:
        raise _refused(RING_VARIABLE, text, error.why) from error


def ring_bytes(size: int | str | None) -> int | None:
    """Return the size of a ring in bytes.

    Raises:
        UsageError: it is no size, or smaller than `LEAST_RING_BYTES`.
    """
    if size is None:
        return None
    found = bytes_of_text(size) if isinstance(size, str) else size
    if type(found) is not int or found < LEAST_RING_BYTES:
        raise UsageError(
            "cannot record into a ring of that size",
            found=repr(size)[:200],
            why=A_RING,
            attempt="ring=64MB, or none to keep everything",
        )
    return found


def dump_signal(environment: Mapping[str, str]) -> int | None:
    """Return the number of the signal at which ranks dump their stacks; None for none.

    Raises:
        UsageError: the variable names no signal.
    """
    text = environment.get(DUMP_SIGNAL_VARIABLE, "") or DUMP_SIGNAL
    name, _, more = text.upper().removeprefix("SIG").partition("+")
    if name == NO_SIGNAL.upper():
        return None
    number = getattr(signal, f"SIG{name}", None)
    if name.isascii() and name.isdigit() and len(name) < 4:
        number = int(name)
    is_offset = more.isascii() and more.isdigit() and len(more) < 3
    if isinstance(number, int) and (not more or is_offset):
        number += int(more or 0)
        if number in signal.valid_signals() and number not in _NOT_FOR_DUMPS:
            return int(number)
    why = f"it is the name of a signal that a program can handle, or {NO_SIGNAL}"
    raise _refused(DUMP_SIGNAL_VARIABLE, text, why)


_NOT_FOR_DUMPS = (
    signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGABRT, signal.SIGCHLD,
)  # fmt: skip


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _number(environment: Mapping[str, str], variable: str, meaning: str) -> int | None:
    text = environment.get(variable, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise _refused(variable, text, meaning)
    return int(text) if text else None


def _refused(variable: str, value: Any, why: str) -> UsageError:
    return UsageError("cannot record this process", found=f"{variable}={value}", why=why)
