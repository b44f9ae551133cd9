"""A built wheel in an environment of its requirements only: reading and reporting need no torch.

The environment links to the required distributions as they are installed here, so that it holds no
other package and needs no network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from trove_classifiers import classifiers

from commtrace.tracefile import read_trace
from tests.commtrace.importers.flight_recorder import dumps
from tests.commtrace.importers.flight_recorder.dumps import write_dumps
from tests.commtrace.importers.kineto import profiles
from tests.commtrace.importers.kineto.profiles import write_profiles
from tests.commtrace.synthetic import write_synthetic_run, write_synthetic_spools
from tests.test_setup import ROOT, needed

PACKAGES = ("commtrace", "dtensor_core", "commtrace_cli")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as an installer does, but in this environment."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def facts(wheel: Path) -> Message:
    """The metadata of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


@dataclass(frozen=True, slots=True)
class Environment:
    """A clean environment with the wheel."""

    folder: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment, in an empty folder of its own."""
        program, *arguments = map(str, command)
        clean = {key: each for key, each in os.environ.items() if not key.startswith("PYTHON")}
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=self.folder.parent,
            env=clean,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and what it requires, without torch."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in needed("commtrace", frozenset(), set()) - {"commtrace"}:
        for entry in top_entries(metadata.distribution(name)):
            if not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--quiet", str(wheel)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return Environment(folder)


def top_entries(distribution: metadata.Distribution) -> set[Path]:
    """Files and folders of a distribution that lie directly in site-packages."""
    home = Path(str(distribution.locate_file("")))
    first = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    return {home / name for name in first if name != "__pycache__"}


def test_the_environment_is_clean(clean: Environment) -> None:
    assert clean.run("python", "-c", "import pandas, plotly, typer, commtrace").returncode == 0
    assert "No module named 'torch'" in clean.run("python", "-c", "import torch").stderr


READING = (
    ("summary",),
    ("table", "by_module"),
    ("check",),
    ("findings",),
    ("explain", "longest"),
    ("flame",),
    ("timeline",),
    ("info",),
    ("dump", "comm"),
    ("export", "--to", "perfetto"),
    ("report", "--force"),
)
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from commtrace_cli.main import main
ended = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, said, code = ["commtrace", *arguments], io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    ended.append((code, said.getvalue()))
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def ended(clean: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit code and output of each command that reads a trace, all run by a single process."""
    run = str(write_synthetic_run(tmp_path_factory.mktemp("read") / "run.json"))
    lines = [[command, run, *rest] for command, *rest in READING]
    result = clean.run("python", "-c", ONE_AFTER_THE_OTHER, json.dumps(lines))
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    return {command: each for (command, *_), each in zip(READING, found, strict=True)}


@pytest.mark.parametrize("command", [command for command, *_ in READING])
def test_a_trace_is_read_and_reported_without_torch(ended: dict[str, Any], command: str) -> None:
    code, said = ended[command]
    assert code == 0, said
    assert said


def test_runs_are_compared_without_torch(clean: Environment, tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path / "run.json")
    for output in ((), ("-o", tmp_path / "diff.html")):
        diff = clean.run("commtrace", "diff", run, run, *output)
        assert diff.returncode == 0, diff.stderr
    assert (tmp_path / "diff.html").exists()


def written_spools(folder: Path) -> tuple[str | Path, ...]:
    return "merge", write_synthetic_spools(folder / "run.json.spools")


def written_dumps(folder: Path) -> tuple[str | Path, ...]:
    return "import", write_dumps(folder / "dumps", dumps.healthy())


def written_profiles(folder: Path) -> tuple[str | Path, ...]:
    return "import", write_profiles(folder / "profiles", profiles.training())


@pytest.mark.parametrize("write", [written_spools, written_dumps, written_profiles])
def test_recordings_become_a_run_file_that_is_loaded_without_torch(
    clean: Environment, tmp_path: Path, write: Callable[[Path], tuple[str | Path, ...]]
) -> None:
    run = tmp_path / "joined.json"
    made = clean.run("commtrace", *write(tmp_path), "-o", run)
    assert made.returncode == 0, made.stderr
    program = (
        "import sys, commtrace\n"
        "run = commtrace.load(sys.argv[1])\n"
        "print(len(run.comm), len(run.table('by_kind')), len(run.flame().data), repr(run))\n"
    )
    loaded = clean.run("python", "-c", program, run)
    assert loaded.returncode == 0, loaded.stderr
    num_calls, num_kinds, *_ = loaded.stdout.split()
    assert int(num_calls) == read_trace(run).num_rows("comm") > 0
    assert int(num_kinds) > 0


def test_the_tables_are_exported_without_torch(clean: Environment, tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path / "run.json")
    result = clean.run("commtrace", "export", run, "--to", "csv", "-o", tmp_path / "tables")
    assert result.returncode == 0, result.stderr
    lines = (tmp_path / "tables" / "comm.csv").read_text().splitlines()
    assert len(lines) == 1 + read_trace(run).num_rows("comm")


def test_a_file_that_is_missing_is_no_traceback_without_torch(
    clean: Environment, tmp_path: Path
) -> None:
    nothing = clean.run("commtrace", "import", tmp_path / "none.json")
    assert nothing.returncode in (2, 3)
    assert "Traceback" not in nothing.stderr


@pytest.mark.parametrize(
    ("command", "purpose"),
    [
        (("commtrace", "run", "--nproc", "1", "train.py"), "commtrace run"),
        (("commtrace", "demo"), "commtrace demo"),
    ],
)
def test_a_command_that_records_says_in_one_line_that_it_needs_torch(
    clean: Environment, command: tuple[str, ...], purpose: str
) -> None:
    result = clean.run(*command)
    assert result.returncode == 2
    assert f"{purpose} needs torch, which is not installed" in result.stderr
    assert "try: pip install 'commtrace[torch]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["record", "CommDebugMode", "launch", "Recording"])
def test_a_name_that_records_says_so_too(clean: Environment, name: str) -> None:
    program = (
        f"import commtrace\ntry:\n    commtrace.{name}\nexcept ImportError as e:\n    print(e)"
    )
    result = clean.run("python", "-c", program)
    assert f"commtrace.{name} needs torch, which is not installed" in result.stdout


def test_every_package_is_typed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    roots = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert roots == {*PACKAGES, "commtrace_auto.pth", "commtrace_auto.py"}


def test_an_index_can_show_the_readme(facts: Message) -> None:
    assert facts["Description-Content-Type"] == "text/markdown"
    text = facts.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    assert all(link.startswith(("https://", "#")) for link in links), links


def test_an_index_can_file_the_project(facts: Message) -> None:
    filed = facts.get_all("Classifier", [])
    assert filed
    assert {*filed} <= {*classifiers}
    assert {each.partition(",")[0] for each in facts.get_all("Project-URL", [])} >= {
        "Homepage",
        "Documentation",
        "Changelog",
        "Issues",
    }
    assert facts["Keywords"]


def test_torch_is_an_extra(facts: Message) -> None:
    required = [each for each in facts.get_all("Requires-Dist", []) if each.startswith("torch")]
    assert required
    assert all("extra ==" in each for each in required)
