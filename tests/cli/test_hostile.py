"""Text of a trace or a file name reaches a terminal as visible characters only."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import UsageError
from commtrace.exporters.spreadsheet import text_of_cell
from commtrace.schema import HOST_EVENT_KINDS, PHASES, ROLES
from commtrace_cli.main import COMMANDS
from commtrace_cli.terminal import Text, data_console, fail, finish, say
from tests.cli.conftest import ROOT, Commtrace, Ended
from tests.commtrace.synthetic import write_synthetic_run

BAD = "\x1b]0;owned\x07\x9b31m\u202e\u2066\r\x08\x00\x7f\u2028\u200b\ud800[red]:smile:[link=x]"
NAME = "=evil\x1b]0;x\x07\u202e\n.json"
_STRUCTURED = re.compile(r"[\d,;\[\]]*|\[\[.*")
"""Structured texts that a reader parses: lists of ranks, shapes, candidates."""
_LISTED = {*PHASES, *ROLES, *HOST_EVENT_KINDS, "dtensor", "local"}
"""Values enumerated by the schema: a trace with another value is refused as a whole."""


def is_seen(text: str) -> bool:
    """Return whether a text has visible characters only; line breaks come from the command."""
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return all(unicodedata.category(letter) not in unseen or letter == "\n" for letter in text)


def spoiled(value: Any) -> Any:
    """Prefix each text of a run's fact with `BAD`."""
    if isinstance(value, str):
        return BAD + value
    return [spoiled(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def hostile_json(tmp_path: Path) -> Path:
    """A trace with hostile text everywhere, including its name."""
    document = json.loads(write_synthetic_run(tmp_path / "plain.json").read_text())
    document["strings"] = [
        text if text in _LISTED or _STRUCTURED.fullmatch(text) else "=" + BAD + text
        for text in document["strings"]
    ]
    document["run"] = {name: spoiled(value) for name, value in document["run"].items()}
    path = tmp_path / NAME
    path.write_text(json.dumps(document))
    return path


ARGUMENTS: dict[str, list[tuple[str, ...]]] = {
    "run": [("TRACE", "--nproc", "1")],
    "record": [("-o", NAME, "TRACE"), (f"missing{NAME}",)],
    "demo": [("--nproc", "3", "-o", NAME)],
    "watch": [
        ("TRACE", "--once"),
        (f"missing{NAME}.comm", "--once"),
        ("TRACE", "--on-hang", BAD),
        ("TRACE", "--on-straggler", BAD),
        ("TRACE", "--exec", BAD.replace("\0", "")),
        ("TRACE", "--dump", BAD),
        ("TRACE", "--metrics", BAD),
    ],
    "summary": [("TRACE",), ("TRACE", "--by", NAME), ("missing" + NAME,), ("TRACE", NAME)],
    "report": [
        ("TRACE", "-o", "out" + NAME),
        ("TRACE", "-o", f"no/{NAME}"),
        ("TRACE", "--link", BAD),
        ("TRACE", "--link", f"{BAD}=9 GB/s"),
    ],
    "timeline": [("TRACE",), ("TRACE", "--window", BAD), ("TRACE", "--ranks", BAD)],
    "flame": [("TRACE",), ("TRACE", "--phase", BAD), ("TRACE", "-o", f"x{BAD}".replace("\0", ""))],
    "table": [("TRACE", BAD), ("TRACE",), ("TRACE", "calls"), ("TRACE", "by_source")],
    "sql": [
        ("TRACE",),
        ("TRACE", "SELECT module, source_file, kind FROM comm"),
        ("TRACE", "SELECT * FROM by_module"),
        ("TRACE", BAD),
        ("TRACE", f"SELECT {BAD} FROM comm"),
        ("TRACE", f'SELECT * FROM "{BAD}"'),
        ("TRACE", f"SELECT '{BAD}' AS \"{BAD}\""),
        (f"{NAME}=TRACE", "SELECT 1"),
        ("TRACE", "-f", NAME),
        ("TRACE", "SELECT 1", "-o", NAME),
    ],
    "explain": [("TRACE", "longest"), ("TRACE", BAD)],
    "findings": [("TRACE",)],
    "whatif": [
        ("TRACE",),
        ("TRACE", BAD),
        ("TRACE", f"remove where module={BAD}"),
        ("TRACE", "shrink *0.5", "-o", f"replayed{NAME}"),
    ],
    "check": [("TRACE",)],
    "diff": [("TRACE", "TRACE"), ("TRACE", "plain.json"), ("TRACE", "plain.json", "TRACE")],
    "compare": [
        ("TRACE", "TRACE"),
        ("TRACE", "plain.json"),
        ("TRACE", "TRACE", "--json"),
        ("TRACE", "TRACE", "-o", "out" + NAME),
    ],
    "info": [("TRACE",)],
    "dump": [
        ("TRACE", "comm"),
        ("TRACE", "groups"),
        ("TRACE", BAD),
        ("TRACE", "comm", "--where", f"kind={BAD}"),
        ("TRACE", "comm", "--columns", BAD),
    ],
    "merge": [("TRACE",), ("plain.json.spools", "-o", f"merged{NAME}")],
    "import": [("TRACE", "-o", "imported.json"), (f"missing{NAME}",)],
    "export": [
        ("TRACE", "--to", "speedscope"),
        ("TRACE", "--to", "csv"),
        ("TRACE", "--to", "chakra"),
        ("TRACE", "--to", BAD),
    ],
}


def test_every_command_is_tried() -> None:
    names = {
        module.__name__.rpartition(".")[2].rstrip("_") for of in COMMANDS.values() for module in of
    }
    assert names == ARGUMENTS.keys()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(command, argv) for command, all_arguments in ARGUMENTS.items() for argv in all_arguments],
    ids=lambda each: each if isinstance(each, str) else ascii(" ".join(each))[:24],
)
def test_a_command_shows_hostile_names_as_letters(
    commtrace: Commtrace, hostile_json: Path, command: str, arguments: tuple[str, ...]
) -> None:
    argv = [str(hostile_json) if each == "TRACE" else each for each in arguments]
    for columns in (60, 160):
        ended: Ended = commtrace(command, *argv, columns=columns)
        assert "Traceback" not in ended.err
        assert is_seen(ended.out), ascii(ended.out)
        assert is_seen(ended.err), ascii(ended.err)
        assert ended.out + ended.err


@pytest.mark.parametrize(
    "arguments",
    [("dump", "TRACE", "comm"), ("table", "TRACE", "by_module"), ("diff", "TRACE", "TRACE")],
)
def test_json_and_csv_are_exact(
    commtrace: Commtrace, hostile_json: Path, arguments: tuple[str, ...]
) -> None:
    argv = [hostile_json if each == "TRACE" else each for each in arguments]
    text = commtrace(*argv, "--json").out
    assert is_seen(text)
    _, table = [value for value in json.loads(text).values() if isinstance(value, dict)][:2]
    modules = {row["module"] for row in table["rows"]}
    assert any(f"={BAD[:-26]}" in module for module in modules)
    rows = csv.DictReader(io.StringIO(commtrace(*argv, "--csv").out, newline=""))
    fields = {row["module"] for row in rows}
    assert all(field.startswith("'=") for field in fields if field)
    assert {text_of_cell(field) for field in fields} == modules


def test_csv_on_a_terminal_has_no_control_characters(
    commtrace: Commtrace, hostile_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace_cli.terminal.is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "dumb")
    assert is_seen(commtrace("dump", hostile_json, "comm", "--csv").out)


def test_what_is_said_goes_through_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{BAD}\n\tnext", always=True)
    fail(UsageError(BAD, found=BAD, why=BAD, attempt=BAD, place=BAD))
    finish([Path(BAD.replace("\0", ""))], then=["commtrace", "summary", BAD])
    console = data_console()
    console.print(BAD, markup=False, emoji=False)
    console.print(Text.assemble(BAD, (BAD, "bold")).append(BAD))
    out, err = capsys.readouterr()
    assert is_seen(out + err)
    assert out.replace("\n", "").count("[red]:smile:") == 4


def test_the_next_command_can_be_pasted_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    finish([], then=["printf", "%s", "it's\x1b\u202e\\"])
    line = capsys.readouterr().err.removeprefix("next  ").strip()
    assert line.isprintable()
    printed = subprocess.run(
        ["bash", "-c", line], capture_output=True, timeout=60, check=True
    ).stdout
    assert printed.decode() == "it's\x1b\u202e\\"


PRINTERS = {
    "cli/commtrace_cli/terminal.py": "is the one place",
    "commtrace/launching/auto.py": "speaks to a program's user, visibly",
    "commtrace/launching/auto_start.py": "speaks to a program's user, visibly",
    "commtrace/session/recording.py": "speaks to a program's user, visibly",
    "commtrace/comm_mode/mode.py": "prints what torch's own mode does, made visible",
    "commtrace/launching/launcher.py": "says for whom it waits, in words of its own",
    "commtrace/launching/watchdog.py": "writes to a file of its own",
}
FORBIDDEN = re.compile(
    r"(^|\.)(print|echo|secho)$|^sys\.(stdout|stderr)\.write$|(^|\.)Console$|^RichText$"
)


def printing(source: str) -> list[str]:
    """The calls in a program that bypass the one place that prints, and imports of rich's texts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if FORBIDDEN.search(name) and not re.match(r"console\.print$", name):
                found.append(name)
        if isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.text", "rich.markup"):
            found.append(f"from {node.module} import")
    return found


def test_no_module_prints_past_the_one_place() -> None:
    files = [*(ROOT / "commtrace").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    names = {str(file.relative_to(ROOT)): file for file in files}
    past = {name: printing(file.read_text()) for name, file in names.items()}
    assert {name: calls for name, calls in past.items() if calls and name not in PRINTERS} == {}
    assert all(past[name] for name in PRINTERS)


@pytest.mark.parametrize(
    "line",
    [
        "print(name)",
        "sys.stdout.write(name)",
        "typer.echo(name)",
        "rich.print(name)",
        "Console().print(name)",
        "from rich.text import Text",
    ],
)
def test_the_check_for_printing_can_fail(line: str) -> None:
    assert printing(line)
