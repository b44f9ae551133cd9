"""Fixtures that run the command line in this process: arguments in, exit code and texts out."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from commtrace.event import GroupRow
from commtrace.tracefile import SpoolWriter, merge_spools, spool_name
from commtrace_cli.main import main
from tests.commtrace.synthetic import synthetic_facts, write_synthetic_run

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def start(*arguments: str | Path, stdout: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start `commtrace ARGS...` in a process of its own, whose output the test may close."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "commtrace_cli", *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


Commtrace = Callable[..., Ended]

# A process runs one command; tests run hundreds, and need not build all commands each time. Only
# the options of completions are built for the shell that is found then.
_build = typer.main.get_command
_built = functools.cache(_build)


@pytest.fixture
def commtrace(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Commtrace:
    """Run `commtrace ARGS...` in an empty folder, in a terminal of 80 columns or as given."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path, columns: int | None = 80) -> Ended:
        monkeypatch.setattr(sys, "argv", ["commtrace", *map(str, arguments)])
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        is_for_a_shell = "--show-completion" in arguments
        monkeypatch.setattr(typer.main, "get_command", _build if is_for_a_shell else _built)
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capfd.readouterr()
        return Ended(int(exit_.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def _written_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_run(tmp_path_factory.mktemp("written") / "run.json")


@pytest.fixture
def run_json(tmp_path: Path, _written_run: Path) -> Path:
    """A trace of 4 ranks, 3 steps and 2 layers, beside the spools that it was merged from."""
    shutil.copytree(_written_run.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run.json"


@pytest.fixture
def silent_json(tmp_path: Path) -> Path:
    """A trace of a rank that communicated nothing and recorded no operator."""
    spools = tmp_path / "silent.spools"
    spools.mkdir()
    with (spools / spool_name(0)).open("wb") as stream:
        writer = SpoolWriter(stream, synthetic_facts(0, 1))
        writer.write({"groups": [GroupRow("0", "world", "0", 1, "", "gloo")]})
        writer.write({}, {"complete": True, "end_ns": synthetic_facts(0, 1)["start_ns"]})
    return merge_spools(spools, tmp_path / "silent.json")
