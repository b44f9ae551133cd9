"""`commtrace` itself: its help, how it ends, and how little it loads to begin with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Commtrace

SLOW_TO_IMPORT = ("torch", "pandas", "numpy", "plotly", "jinja2")


def loaded_after(program: str) -> set[str]:
    """Which of the slow modules a fresh Python has loaded after running `program`."""
    report = f"""
import sys
print("loaded", *(set({SLOW_TO_IMPORT}) & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split()[1:])


COMMANDS = (
    *("run", "report", "summary", "table", "findings", "check", "diff", "explain", "merge"),
)

HELP = """
import sys
from commtrace_cli.main import main
sys.argv = ["commtrace", {arguments}]
try:
    main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize("arguments", ["'--help'", "'run', '--help'", "'report', 'nope'"])
def test_nothing_slow_is_loaded_before_it_is_needed(arguments: str) -> None:
    assert loaded_after(HELP.format(arguments=arguments)) == set()


def test_the_check_for_slow_modules_can_fail() -> None:
    assert loaded_after("import commtrace.analyze") >= {"pandas", "numpy"}


def test_help_lists_the_commands_and_the_exit_codes(commtrace: Commtrace) -> None:
    ended = commtrace("--help")
    assert ended.code == 0
    for command in COMMANDS:
        assert f"│ {command} " in ended.out
    for line in ("0 done", "1 the script failed", "2 the command cannot be met", "3 the trace"):
        assert line in ended.out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_in_its_help(commtrace: Commtrace, command: str) -> None:
    ended = commtrace(command, "--help", columns=140)
    assert ended.code == 0
    assert f"commtrace {command} " in ended.out.partition("Example")[2]


def test_no_command_at_all_shows_the_help(commtrace: Commtrace) -> None:
    ended = commtrace()
    assert ended.code == 2
    assert "Usage: commtrace" in ended.out + ended.err


def test_an_unknown_command_is_named(commtrace: Commtrace) -> None:
    ended = commtrace("reprot")
    assert ended.code == 2
    assert "No such command 'reprot'" in ended.err
    assert "Traceback" not in ended.err


def test_what_the_system_refuses_gets_a_sentence(commtrace: Commtrace, run_json: Path) -> None:
    name = "x" * 300
    ended = commtrace("report", run_json, "-o", name)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"error: File name too long\n  at: {name}\n"
