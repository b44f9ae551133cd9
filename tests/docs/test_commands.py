"""docs/commands.md agrees with the command line."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path

from typer.main import get_command

from commtrace_cli.main import EXIT_CODES, app

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate" / "commands.py"))
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def test_the_document_is_up_to_date() -> None:
    assert (DOCS / "commands.md").read_text() == GENERATOR["render"](), "run `make docs`"


def test_every_command_and_option_and_exit_code_is_in_it() -> None:
    text = GENERATOR["render"]()
    for name, command in COMMANDS.items():
        _, found, section = text.partition(f"\n### {name}\n")
        assert found, name
        section = section.partition("\n### ")[0]
        for parameter in command.params:
            names = ", ".join(parameter.opts)
            wanted = names if parameter.param_type_name == "option" else parameter.metavar
            assert f"| `{wanted}" in section, (name, wanted)
    assert all(f"| `{code}` | " in text for code in EXIT_CODES)


def test_a_changed_option_changes_the_document() -> None:
    command = COMMANDS["report"]
    changed = copy.copy(command)
    changed.params = [copy.copy(parameter) for parameter in command.params]
    changed.params[-1].help = "Something else."
    lines = GENERATOR["command_lines"]
    assert list(lines(changed)) != list(lines(command))
