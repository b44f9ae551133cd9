"""Fixtures that run the demo once for all tests, with the command that `make demo` runs.

Workers of pytest-xdist share the runs: the first worker that needs a run makes it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from filelock import FileLock

from commtrace.analyze import Frames, load
from tests.demo.loading import TRAIN_TP
from tests.preloaded import forked_interpreters

ROOT = Path(__file__).parents[2]
MODES = {"tensor parallel": (), "sequence parallel": ("--sequence-parallel",)}
DEADLINE_S = 120
STEPS = 20
STEPS_OPTION = ("--steps", str(STEPS))


@dataclass(frozen=True, slots=True)
class Demo:
    """One recorded training."""

    mode: str
    trace: Path
    losses: list[float]
    cpu_s: float
    frames: Frames


def start(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program of the checkout to completion; a timeout kills its process group."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    with forked_interpreters():
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def cpu_of_children_s() -> float:
    """CPU time in seconds that all finished child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def losses_in(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step +\d+ +loss (\S+)$", output, re.MULTILINE)]


def recorded(mode: str, folder: Path) -> None:
    """Record the training of a mode in a folder, unless another worker has done so."""
    with FileLock(folder.with_suffix(".lock")):
        if folder.exists():
            return
        making = folder.with_suffix(".making")
        making.mkdir(exist_ok=True)
        before = cpu_of_children_s()
        trace = making / "run.json"
        options = ("-n", "4", "--force", "-o", trace)
        done = start("-m", "commtrace_cli", "run", *options, TRAIN_TP, *STEPS_OPTION, *MODES[mode])
        cpu_s = cpu_of_children_s() - before
        assert done.returncode == 0, done.stderr
        about = {"losses": losses_in(done.stdout), "cpu_s": cpu_s}
        (making / "about.json").write_text(json.dumps(about))
        making.rename(folder)


@lru_cache
def demo_in(folder: Path, mode: str) -> Demo:
    """The training of a mode; kept, since its tests in several files alternate between modes."""
    recorded(mode, folder)
    about = json.loads((folder / "about.json").read_text())
    return Demo(mode, folder / "run.json", **about, frames=load(folder / "run.json"))


@pytest.fixture(scope="session", params=list(MODES))
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The training of a mode, recorded by `commtrace run`."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    return demo_in(shared / f"demo-{request.param.replace(' ', '-')}", request.param)


@pytest.fixture(scope="session")
def single_process_losses() -> list[float]:
    """The losses of the same training in a single process."""
    done = start(TRAIN_TP, "--single-process", *STEPS_OPTION)
    assert done.returncode == 0, done.stderr
    return losses_in(done.stdout)
