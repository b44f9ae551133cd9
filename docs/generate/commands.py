"""Write docs/commands.md: every command, from the command line itself.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from commtrace_cli.main import COMMANDS, EXIT_CODES, app

TARGET = Path(__file__).parents[1] / "commands.md"

ABOUT = """\
# Commands

Written by `make docs` from `cli/commtrace_cli/`: change the commands, not this file.

Results are written to stdout and notes to stderr. Colours, and tables truncated to the width, are
used on terminals only (`NO_COLOR` and `COLUMNS` are respected). `--json` and `--csv` print exact
numbers: bytes and nanoseconds, with null or -1 for unknown values. Nothing is overwritten without
`--force`, except that `report` replaces its own earlier page; no command overwrites its own input.
`commtrace --install-completion` installs shell completion of commands, options, tables and traces.

## Exit codes

| code | meaning |
| --- | --- |
"""


def escaped(cell: str) -> str:
    """Escape pipes, so that a cell cannot end its own column."""
    return cell.replace("|", "\\|")


def default_of(parameter: Any) -> str:
    """Format the default of a parameter as it would be typed; empty if there is none to show."""
    value = parameter.default
    if parameter.required or value is None or value is False or not parameter.show_default:
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def parameter_lines(command: Any) -> Iterator[str]:
    """Yield the lines of a table of arguments and options."""
    yield "| argument or option | default | meaning |"
    yield "| --- | --- | --- |"
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar
        else:
            metavar = parameter.metavar
            if metavar is None and isinstance(parameter.default, Enum):
                metavar = "|".join(str(choice.value) for choice in type(parameter.default))
            name = f"{', '.join(parameter.opts)} {metavar or ''}".strip()
        meaning = escaped(" ".join((parameter.help or "").split()))
        yield f"| `{escaped(name)}` | {default_of(parameter)} | {meaning} |"


def command_lines(command: Any) -> Iterator[str]:
    """Yield the lines of one command: description, parameters and examples."""
    yield from (f"### {command.name}", "", inspect.cleandoc(command.help), "")
    yield from (*parameter_lines(command), "")
    yield from (command.epilog.strip(), "")


def render() -> str:
    """Render the document."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    lines = [ABOUT + "\n".join(f"| `{code}` | {how} |" for code, how in EXIT_CODES.items()), ""]
    for purpose, modules in COMMANDS.items():
        lines += [f"## {purpose}", ""]
        for module in modules:
            lines += command_lines(commands[module.__name__.rpartition(".")[2].rstrip("_")])
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
