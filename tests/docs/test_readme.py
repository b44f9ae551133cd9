"""The programs in README.md run, and their comments are true."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from commtrace.recorder.interception.untried_torch import NEWEST_TRIED
from commtrace_cli.main import app, main
from dtensor_core import observe
from dtensor_core.testing import fake_world
from tests.commtrace.pytest_plugin.conftest import Project, loaded, project
from tests.commtrace.synthetic import write_synthetic_run, write_synthetic_spools

pytestmark = pytest.mark.usefixtures("preloaded")

pytest_plugins = ["pytester"]

__all__ = ["loaded", "project"]

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def program(with_text: str) -> str:
    """Return the only Python block of the README that contains `with_text`."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    (found,) = [block for block in blocks if with_text in block]
    return found


def test_the_recording_is_written(tmp_path: Path) -> None:
    names = {"model": torch.nn.Linear(2, 2), "batches": [torch.ones(1, 2)] * 3}
    exec(program("with commtrace.record("), names)
    assert (tmp_path / "run.json").is_file()


def test_a_run_answers_in_python(tmp_path: Path) -> None:
    for name in ("run.json", "other.json"):
        write_synthetic_run(tmp_path / name)
    text = program("run.findings()")
    names: dict[str, Any] = {}
    exec(text, names)
    for line in re.findall(r"^run\..+$", text, re.M):
        assert len(repr(eval(line, names))) > 50, line  # each of them has something to show
    for figure in re.findall(r"(\w+)\(\)", text.partition("also ")[2].partition("\n")[0]):
        assert getattr(names["run"], figure)().data


def test_the_layouts_and_the_reason_are_those_of_the_comments() -> None:
    text = program("distribute_tensor")
    names: dict[str, object] = {}
    sentences: list[str] = []
    with fake_world(4), observe.listening(lambda reported: sentences.append(reported.sentence)):
        exec(text, names)
    layout, reason = re.findall(r"  # (.+)$", text, re.M)
    assert names["weight"]._spec.text == layout  # type: ignore[attr-defined]
    assert sentences[-1].endswith(reason)


def test_what_a_function_would_send_is_reported_and_what_sends_nothing_is_let_through(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, object] = {}
    with fake_world(4):
        exec(program("distribute_tensor"), names)
        exec(program("import ExplicitRedistributionContext, explain"), names)
    reported = capsys.readouterr().out
    assert "aten._softmax.default  f32[8,16] tp:S(1)" in reported
    assert "considered: " in reported
    assert "placements=(Partial(sum),)" in reported


def test_the_test_with_a_mark_passes(project: Project) -> None:
    (project.path / "test_steps.py").write_text(program("comms("))
    result = project.run()
    assert result.ret == 0, result.stdout.str()


def test_every_question_is_answered_in_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = re.findall(r"^\| (.+\?) \| (`.+?`) \|", README.read_text(), re.M)
    assert len(rows) == 21
    write_synthetic_spools(Path("RUN.comm"))
    traces = ("run.json", "before.json", "after.json", "one.json", "four.json")
    for name in (*traces, "joined.json", "ras.json"):
        write_synthetic_run(Path(name))
    for question, commands in rows:
        for words in command_lines(commands):
            monkeypatch.setattr(sys, "argv", ["commtrace", *words])
            with pytest.raises(SystemExit) as ended:
                main()
            has_none = "--gradients" in words  # as these runs have no values
            assert ended.value.code == (4 if has_none else 0), question
            assert capfd.readouterr().out, question


def torch_versions(text: str) -> tuple[str, ...]:
    """Return the oldest and the newest version of torch that a document first states as tested."""
    version = r"([\d.]+\d)"
    found = re.search(rf"[Tt]ested\s+with\s+torch\s+{version}[\s\d.,]*\s+and\s+{version}", text)
    assert found
    return found.groups()


@pytest.mark.parametrize("document", ["README.md", "CHANGELOG.md"])
def test_the_versions_of_torch_are_those_that_are_tested(document: str) -> None:
    root = README.parent
    oldest, newest = torch_versions((root / document).read_text())
    (pinned,) = re.findall(r"^torch==(.+)$", (root / "constraints.txt").read_text(), re.M)
    assert oldest == pinned
    assert tuple(map(int, newest.split(".")[:2])) == NEWEST_TRIED
    (required,) = re.findall(r'"torch>=([\d.]+)"\]', (root / "pyproject.toml").read_text())
    assert f"{oldest}.".startswith(f"{required}.")


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "Makefile"])
def test_another_torch_is_the_newest_tested_one(document: str) -> None:
    text = (README.parent / document).read_text()
    _, newest = torch_versions(README.read_text())
    assert set(re.findall(r"TORCH=([\d.]+\d)", text)) == {newest}


def test_the_questions_come_before_the_installation() -> None:
    text = README.read_text()
    assert re.findall(r"^## (.+)$", text, re.M)[:2] == ["Tasks", "Questions and commands"]
    assert text.index("| question |") < text.index("pip install") < text.index("make demo")


def command_lines(text: str) -> list[list[str]]:
    """Command lines that a document gives for `commtrace`."""
    lines = re.findall(r"(?:^    |`)commtrace ([a-z][^`\n]*)", text, re.M)
    return [shlex.split(line) for line in lines]


def accepted(words: list[str]) -> bool:
    """Return whether the command exists and has these options."""
    group = get_command(app)
    name, *rest = words
    command = group.commands.get(name)  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts} if command else ()
    ours = list(itertools.takewhile(lambda word: not word.endswith(".py"), rest))
    return command is not None and all(w in known for w in ours if w.startswith("-"))


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/commands.md"]
)
def test_the_command_lines_are_those_of_the_program(document: str) -> None:
    lines = command_lines((README.parent / document).read_text())
    assert [words for words in lines if not accepted(words)] == []


def test_a_command_line_of_another_program_is_noticed() -> None:
    text = "`commtrace run --nproc 4 -o run.json train.py --my-option 3` `commtrace dance`\n"
    text += "    commtrace report --loud run.json\n"
    refused = [words for words in command_lines(text) if not accepted(words)]
    assert refused == [["dance"], ["report", "--loud", "run.json"]]
