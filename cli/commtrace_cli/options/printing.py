"""The form in which a command prints."""

from __future__ import annotations

from typing import Annotated

import typer

from commtrace import __version__
from commtrace.errors import UsageError
from commtrace_cli.options.declare import option
from commtrace_cli.terminal import write


def _one_format(context: typer.Context, value: bool) -> bool:
    given = [word for name, word in _FORMATS.items() if context.params.get(name)]
    if value and given:
        *others, last = _FORMATS.values()
        raise UsageError(
            "cannot print two formats at once", attempt=f"one of {', '.join(others)} and {last}"
        )
    return value


_FORMATS = {"as_json": "--json", "as_csv": "--csv", "as_markdown": "--markdown"}


def _version(value: bool) -> None:
    if value:
        write(f"commtrace {__version__}\n")
        raise typer.Exit


AsJson = Annotated[bool, option("--json", "Exact numbers as JSON.", callback=_one_format)]
AsCsv = Annotated[
    bool,
    option(
        "--csv",
        "Exact numbers of a single table as CSV. Text that a spreadsheet would evaluate as a "
        "formula is prefixed with an apostrophe.",
        callback=_one_format,
    ),
]
AsMarkdown = Annotated[
    bool,
    option(
        "--markdown",
        "Markdown, for a pull request or the summary of a CI job.",
        callback=_one_format,
    ),
]
Version = Annotated[
    bool, option("--version", "Print the version and exit.", callback=_version, is_eager=True)
]
