"""The command `commtrace`: its subcommands, and its exit on errors."""

from __future__ import annotations

import os
import re
import sys
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from commtrace.errors import CommtraceError, UsageError
from commtrace_cli import (
    check,
    compare,
    demo,
    diff,
    dump,
    explain,
    export,
    findings,
    flame,
    import_,
    info,
    merge,
    record,
    report,
    run,
    sql,
    summary,
    table,
    timeline,
    watch,
    whatif,
)
from commtrace_cli.options import printing
from commtrace_cli.terminal import ClosedOutput, fail, forget_odd_sizes, spare_letters

EXIT_CODES = {
    "0": "success",
    "1": "the script failed, or could not be recorded; `check` found a fault; `compare` found a "
    "wrong tensor; `diff --fail-on-increase` or `findings --fail-on` found what it guards; `watch` "
    "saw ranks die",
    "2": "a usage error",
    "3": "the trace cannot be read; `watch`: there is none; `run`: the program succeeded, but not "
    "all of it was written",
    "4": "`compare` and `check --gradients`: too little was compared; `watch`: a hang",
    "5 to 7": "`watch`: a straggler, a mismatch, or no answer to `--dump`",
    "128 + n": "stopped by signal n: 130 by Ctrl-C, 141 if the reader closed the output",
}

COMMANDS: dict[str, tuple[ModuleType, ...]] = {
    "Record": (run, record, demo),
    "Watch": (watch,),
    "Look": (summary, report, timeline, flame, table, sql, explain),
    "Judge": (findings, whatif, check, diff, compare),
    "Traces": (info, dump, merge, import_, export),
}
"""Commands by purpose. A module has a function of its own name, `EXAMPLE`, and optionally
`SETTINGS`.
"""


class _FlagsAreNoValues:
    """Mixin that omits the metavar of options without a value, such as --help."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class _Group(_FlagsAreNoValues, TyperGroup):
    pass


class _Command(_FlagsAreNoValues, TyperCommand):
    pass


app = typer.Typer(
    cls=_Group,
    help="Records and analyses the communication of distributed PyTorch programs.",
    epilog="Exit codes:\n\n" + "\n".join(f"- `{code}` {how}" for code, how in EXIT_CODES.items()),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _purpose, _modules in COMMANDS.items():
    for _module in _modules:
        _function = _module.__name__.rpartition(".")[2]
        app.command(
            _function.rstrip("_"),  # a command may be a keyword of Python
            epilog=_module.EXAMPLE,
            context_settings=getattr(_module, "SETTINGS", None),
            rich_help_panel=_purpose,
            cls=_Command,
        )(getattr(_module, _function))


@app.callback()
def _commtrace(version: printing.Version = False) -> None:
    """Options before a command; `version` has been handled by then."""


CLOSED = 128 + 13  # as a shell reports a process ended by SIGPIPE


def main() -> None:
    """Run the command line and exit."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - closed by who started it
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    spare_letters(sys.stdout, sys.stderr)
    forget_odd_sizes()
    try:
        try:
            code = app(prog_name="commtrace", standalone_mode=False)
        finally:
            sys.stdout.flush()  # here, where it may still fail with a sentence
        sys.exit(code or 0)
    except (ClosedOutput, BrokenPipeError):
        _forget_output()
        sys.exit(CLOSED)
    except CommtraceError as error:
        fail(error)
        sys.exit(error.exit_code)
    except _NotUnderstood as error:
        if type(error).__name__ != _HELP_PRINTED:
            fail(_not_understood(error))
        sys.exit(UsageError.exit_code)
    except OSError as error:
        if error.filename is None:
            _forget_output()
        refused = _refused(error)
        fail(refused)
        sys.exit(refused.exit_code)


def _refused(error: OSError) -> UsageError:
    """Return the error for an OSError; without a file name, writing the output failed."""
    if error.filename is None:
        attempt = "redirect the output to another place"
        return UsageError("cannot write the output", found=_reason(error), attempt=attempt)
    return UsageError(
        f"cannot use {error.filename}",
        found=_reason(error),
        why="the system does not allow it",
        attempt="another path, or other permissions",
    )


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


_NotUnderstood: Any = next(
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
)
"""Base class of the argument parser's errors; typer releases import it from different packages."""

_HELP_PRINTED = "NoArgsIsHelpError"
"""Its exception for no arguments at all, raised after the help was printed."""

_CHOICE = re.compile(r"'(?P<given>[^']*)' is not one of (?P<known>'.*')")


def _not_understood(error: Any) -> UsageError:
    """Return the error for a refused argument, with the closest known choice."""
    command = error.ctx.command_path if getattr(error, "ctx", None) else "commtrace"
    message = error.format_message().replace("Value error, ", "").strip()
    attempt = f"`{command} --help`"
    choice = _CHOICE.search(message)
    if choice:
        known = re.findall(r"'(.*?)'", choice["known"])
        close = get_close_matches(choice["given"], known, n=1)
        attempt = f"{close[0]}, or {attempt}" if close else attempt
    return UsageError(message, attempt=attempt)


def _forget_output() -> None:
    """Discard buffered stdout, so that Python does not write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
