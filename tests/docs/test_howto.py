"""Pages of docs/howto: their commands run, and print what the pages show.

A block `console` has commands, each after `$ `, and what they print. `...` stands for lines left
out, and numbers may differ, but not those of source lines. Pages use the programs of
`examples/howto`; a run that several pages read is recorded once.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.test_readme import accepted
from tests.preloaded import forked_interpreters

pytestmark = pytest.mark.usefixtures("preloaded")

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
MOST_WORDS = 480
"""Two minutes of reading."""

RECORDED = {
    "run.json": "commtrace run --nproc 2 -o run.json train.py",
    "after.json": "commtrace run --nproc 2 -o after.json train.py --ddp",
    "hang.json": "commtrace run --nproc 2 --timeout 10 -o hang.json hang.py",
    "demo.json": "commtrace demo --nproc 2 -o demo.json",
    "hf.json": "commtrace run --nproc 2 -o hf.json hf.py",
    "one.json": "commtrace run --nproc 1 --values -o one.json train.py --steps 3",
    "two.json": "commtrace run --nproc 2 --values -o two.json train.py --steps 3",
}
"""Runs that pages read, and the commands by which a page records them."""
MODULES = {"commtrace": "commtrace_cli", "pytest": "pytest", "torchrun": "torch.distributed.run"}
FAILING = ("--timeout", "check", "--fail-on-increase")
"""Words of commands that may end with code 1: they find a hang, or more calls."""
DEADLINE_S = 240


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page with what it prints, or a file of the page with its text."""

    command: str = ""
    file: str = ""
    lines: list[str] = field(default_factory=list)


def steps(text: str) -> Iterator[Step]:
    """Yield the commands and files of a page, in order."""
    for heading, block in re.findall(r"^```(\w+[^\n]*)\n(.*?)^```", text, re.M | re.S):
        if title := re.search(r'title="(.+?)"', heading):
            yield Step(file=title[1], lines=block.splitlines())
        if heading != "console":
            continue
        for entry in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = entry.splitlines()
            size = next(size for size in range(1, len(lines) + 1) if is_closed(lines[:size]))
            yield Step(command="\n".join(lines[:size]), lines=lines[size:])


def is_closed(lines: list[str]) -> bool:
    """Return whether lines are a whole command: quotes may span several."""
    try:
        return bool(shlex.split("\n".join(lines)))
    except ValueError:
        return False


def masked(line: str) -> str:
    """Return a line with its numbers masked, but not those of source lines, and single spaces."""
    text = re.sub(r"(?<![:\d.,])[+-]?\d[\d.,]*( ?([nµm]?s|[kMG]?B)\b)?", "#", line)
    return " ".join(text.split())


def is_like(printed: str, expected: str) -> bool:
    """Return whether a line is as expected, up to a final `...`."""
    if expected.endswith(" ..."):
        return printed.startswith(expected.removesuffix(" ..."))
    return printed == expected


def lacking(expected: list[str], printed: list[str]) -> list[str]:
    """Return an expected line that is not printed at its place, and what is; none if all are."""
    lines = [each for each in map(masked, printed) if each and not each.startswith("next ")]
    place, is_loose = 0, False
    for text in (each for each in map(masked, expected) if each):
        if text == "...":
            is_loose = True
            continue
        rest = lines[place:] if is_loose else lines[place : place + 1]
        found = next((number for number, line in enumerate(rest) if is_like(line, text)), -1)
        if found < 0:
            return [text, *lines[place : place + 3]]
        place, is_loose = place + found + 1, False
    return [] if is_loose or place == len(lines) else ["printed more:", *lines[place : place + 3]]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line of a page in a folder that has the programs of `examples/howto`."""
    words = shlex.split(command)
    variables = [*itertools.takewhile(lambda word: re.match("[A-Z_]+=", word), words)]
    name, *arguments = words[len(variables) :]
    environment = {
        **os.environ,
        **dict(each.split("=", 1) for each in variables),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
    }
    with forked_interpreters():
        return subprocess.run(
            [sys.executable, "-m", MODULES[name], *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs of `examples/`, in which the commands run in turn."""
    made = tmp_path_factory.mktemp("howto")
    for path in (ROOT / "examples" / "howto").glob("*.py"):
        shutil.copy(path, made)
    started = made / "bin" / "commtrace"  # by torchrun
    started.parent.mkdir()
    started.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m commtrace_cli "$@"\n')
    started.chmod(0o755)
    return made


def recorded(command: str, folder: Path) -> bool:
    """Record what a command needs, and return whether the command itself has been run before."""
    for name, recording in RECORDED.items():
        if name not in command.split():
            continue
        if (folder / name).exists():
            if command == recording:
                return True
        elif command != recording:
            run(recording, folder)
            assert (folder / name).exists(), recording
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, folder: Path) -> None:
    written = []
    for step in steps(page.read_text("utf-8")):
        if step.file:
            written.append(folder / step.file)
            written[-1].write_text("\n".join(step.lines))
        elif not recorded(step.command, folder):
            ended = run(step.command, folder)
            printed = (ended.stdout + ended.stderr).splitlines()
            may_fail = any(word in step.command.split() for word in FAILING)
            assert ended.returncode in ((0, 1) if may_fail else (0,)), printed
            if step.lines:
                assert lacking(step.lines, printed) == [], "\n".join(printed)
    for path in written:
        path.unlink()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_only_commands_that_exist_and_is_short(page: Path) -> None:
    text = page.read_text("utf-8")
    lines = [step.command for step in steps(text)]
    lines += re.findall(r"`(commtrace [a-z][^`]*)`", text)
    ours = [shlex.split(line)[1:] for line in lines if line.startswith("commtrace ")]
    assert ours
    assert [words for words in ours if not accepted(words)] == []
    assert len(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).split()) <= MOST_WORDS


def test_a_program_that_a_page_shows_is_the_one_that_runs() -> None:
    shown = (ROOT / "docs" / "howto" / "ci.md").read_text("utf-8")
    program = (ROOT / "examples" / "howto" / "test_train.py").read_text("utf-8")
    assert program.partition("\n\n")[2] in shown


def test_lines_that_are_not_printed_are_noticed() -> None:
    printed = ["rank 0  took 3.5 ms", "", "line 7", "the end"]
    assert lacking(["rank 0   took 12 µs", "...", "the end"], printed) == []
    assert lacking(["...", "line 9", "..."], printed) == []
    assert lacking(["rank 0  took 3.5 ms", "the end"], printed) == ["the end", "line #", "the end"]
    assert lacking(["rank 0  took 3.5 ms"], printed) == ["printed more:", "line #", "the end"]
    assert lacking(["...", "another", "..."], printed)
    assert lacking(["rank 1 ...", "..."], printed) == []
    assert lacking(["t.py:8"], ["t.py:9"])
    assert lacking(["all of it"], ["all of it", "next  commtrace report run.json"]) == []


def test_commands_of_several_lines_and_files_are_found() -> None:
    text = '```toml title="a.toml"\nx = 1\n```\n```console\n$ one "a\nb"\nout\n$ two\n```\n'
    assert [*steps(text)] == [
        Step(file="a.toml", lines=["x = 1"]),
        Step(command='one "a\nb"', lines=["out"]),
        Step(command="two"),
    ]
