"""`commtrace` itself: its help, its exit codes, and the few modules that it loads at startup."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commtrace import __version__
from commtrace_cli.main import COMMANDS, EXIT_CODES
from tests.cli.conftest import Commtrace, start

SLOW_TO_IMPORT = ("torch", "pandas", "numpy", "plotly", "jinja2")


def loaded_after(program: str) -> set[str]:
    """Return the slow modules that a fresh Python has loaded after running `program`."""
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


NAMES = [
    module.__name__.rpartition(".")[2].rstrip("_")
    for modules in COMMANDS.values()
    for module in modules
]

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
    for command in NAMES:
        assert f"│ {command} " in ended.out
    for code, how in EXIT_CODES.items():
        assert f"• {code} {how}".replace("`", "") in " ".join(ended.out.split())


@pytest.mark.parametrize("command", NAMES)
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
    assert ended.err.startswith("error: No such command 'reprot'")
    assert ended.err.endswith("\n  try: `commtrace --help`\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("summary", "run.json", "--by", "modul"),
            "error: Invalid value for '--by': 'modul' is not one of 'kind', 'phase', 'module', "
            "'op', 'source'.\n  try: module, or `commtrace summary --help`\n",
        ),
        (
            ("export", "run.json", "--to", "zip"),
            "error: Invalid value for '--to': 'zip' is not one of 'perfetto', 'speedscope', "
            "'csv', 'parquet', 'chakra'.\n  try: `commtrace export --help`\n",
        ),
        (
            ("summary",),
            "error: Missing argument 'TRACE'.\n  try: `commtrace summary --help`\n",
        ),
    ],
)
def test_a_wrong_argument_gets_an_error_like_all_others(
    commtrace: Commtrace, run_json: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert commtrace(*arguments).err == message


def test_what_the_system_refuses_gets_a_sentence(commtrace: Commtrace, run_json: Path) -> None:
    name = "x" * 300
    ended = commtrace("report", run_json, "-o", name)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        f"error: cannot write {name}\n"
        "  found: a name that is too long for the file system\n"
        "  try: a shorter name\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [("summary",), ("summary", "--json"), ("table", "calls", "--csv"), ("explain", "longest")],
)
def test_who_stops_reading_ends_the_command_without_a_word(
    run_json: Path, arguments: tuple[str, ...]
) -> None:
    command, *rest = arguments
    with start(command, run_json, *rest) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        message = process.stderr.read()
        assert (process.wait(timeout=60), message) == (141, b"")


def test_output_that_cannot_be_written_gets_a_sentence(run_json: Path) -> None:
    with (
        open("/dev/full", "wb") as full,
        start("summary", run_json, "--json", stdout=full) as process,
    ):
        assert process.communicate(timeout=60)[1].decode() == (
            "error: cannot write the output\n"
            "  found: no space left on device\n"
            "  try: redirect the output to another place\n"
        )
        assert process.returncode == 2


def test_a_closed_output_is_as_good_as_one_that_nobody_reads(
    commtrace: Commtrace, run_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert commtrace("summary", run_json).code == 0
    assert sys.stdout.name == os.devnull
    sys.stdout.close()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("table run.json by_k", "by_kind"),
        ("summary r", "run.json\nrun.json.spools"),
        ("report nested/", "nested/deep.json\nnested/more/"),
        ("diff run.json nested/d", "nested/deep.json"),
        ("explain run.json lon", "longest"),
        ("summary --by k", "kind"),
        ("expl", "explain"),
        ("summary xyz", ""),
    ],
)
def test_the_shell_completes_names_of_commands_tables_calls_and_traces(
    commtrace: Commtrace,
    run_json: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    offered: str,
) -> None:
    (run_json.parent / "nested" / "more").mkdir(parents=True)
    for name in ("deep.json", "train.py"):
        (run_json.parent / "nested" / name).touch()
    monkeypatch.setenv("_COMMTRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"commtrace {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    ended = commtrace()
    assert (ended.code, ended.out.strip(), ended.err) == (0, offered, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_can_be_shown(
    commtrace: Commtrace, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    ended = commtrace("--show-completion", shell)
    assert ended.code == 0
    assert "_COMMTRACE_COMPLETE" in ended.out


def test_the_version_is_reported(commtrace: Commtrace) -> None:
    ended = commtrace("--version")
    assert (ended.code, ended.out) == (0, f"commtrace {__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["summary"], ["demo"]])
def test_help_names_no_type_of_an_option_without_a_value(
    commtrace: Commtrace, arguments: list[str]
) -> None:
    assert "bool" not in commtrace(*arguments, "--help", columns=140).out


@pytest.mark.parametrize("command", ["summary", "findings", "check"])
def test_json_and_csv_at_once_are_refused(
    commtrace: Commtrace, run_json: Path, command: str
) -> None:
    ended = commtrace(command, run_json, "--json", "--csv")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: cannot print two formats at once\n  try: one of --json, --csv and --markdown\n"
    )


def test_an_encoding_without_bars_gets_plain_letters(
    run_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for command in ("flame", "timeline", "summary"):
        process = start(command, run_json)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, b"Traceback" in err) == (0, False)
        assert out.isascii()
        assert command == "summary" or b"###" in out or b" __" in out


@pytest.mark.parametrize("command", ["summary", "explain", "flame", "timeline", "info"])
def test_lines_of_a_pipe_have_no_blanks_at_their_end(
    commtrace: Commtrace, run_json: Path, command: str
) -> None:
    more = ["longest"] if command == "explain" else []
    lines = commtrace(command, run_json, *more).out.split("\n")
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_trace_is_shown_from_a_folder_that_was_removed_and_at_no_width(
    commtrace: Commtrace, run_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = commtrace("summary", run_json, columns=None)
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    ended = commtrace("summary", run_json, columns=0)
    assert (ended.code, ended.out) == (0, expected.out)
