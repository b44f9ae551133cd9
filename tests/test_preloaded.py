"""A forked interpreter behaves like a started interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.preloaded import ROOT, forked_interpreters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="interpreters are started there")

SHOW = """
import os, sys, threading, traceback
print(sys.argv, __name__, sys.path, os.getcwd(), os.environ["MINE"], "HOME" in os.environ)
print(sys.stdin.read(), sys.stdout.name, sys.stderr.name, threading.current_thread().name)
print([line for line in traceback.format_stack()], os.getsid(0) == os.getpid())
print(sys.stdout.line_buffering, sys.stdout.write_through, file=sys.stderr)
"""
ENDS = {
    "success": "",
    "a code": "raise SystemExit(3)",
    "a large code": "raise SystemExit(258)",
    "a message": "raise SystemExit('no data')",
    "an error": "def f():\n    raise ValueError('no data')\nf()",
    "os._exit": "import os; os._exit(5)",
    "a signal": "import os; os.kill(os.getpid(), 15)",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "handlers": "import atexit; atexit.register(print, 'bye')",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "a warning": "import warnings; warnings.warn('old', FutureWarning)",
    "replaced": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(2)'])",
}


def both(
    words: Sequence[str], folder: Path, **settings: Any
) -> list[subprocess.CompletedProcess[bytes]]:
    """Run this Python with a started command and a forked command."""
    own = {"MINE": "1", "PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, *words]
    settings = {"input": b"in", "capture_output": True, "timeout": 60, "env": own} | settings
    started = subprocess.run(command, cwd=folder, **settings)
    with forked_interpreters():
        forked = subprocess.run(command, cwd=folder, **settings)
    return [started, forked]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "show.py").write_text(SHOW)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["package/show.py", "-u", "--steps", "3"],
        ["-u", "package/show.py"],
        ["-m", "package.show", "a"],
        ["-c", SHOW, "-c"],
    ],
    ids=["script", "unbuffered", "module", "code"],
)
@pytest.mark.parametrize("is_session", [False, True])
def test_it_sees_what_a_started_one_sees(words: list[str], is_session: bool, folder: Path) -> None:
    started, forked = both(words, folder, start_new_session=is_session)
    assert started.returncode == 0, started.stderr
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_a_started_one_ends(end: str, tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text(ENDS[end])
    started, forked = both(["-W", "ignore", "end.py"], tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_it_has_loaded_torch_and_is_a_child() -> None:
    code = "import os, sys; print(os.getppid(), 'torch' in sys.modules)"
    with forked_interpreters():
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ended.stdout == f"{os.getpid()} True\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == f"{os.getpid()} False\n"


def test_signals_reach_it() -> None:
    with forked_interpreters():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize(
    "command",
    [["true"], [sys.executable, "-I", "-c", "1"], [sys.executable, "--version"], "exit 0"],
    ids=str,
)
def test_other_commands_are_started(command: Any) -> None:
    with forked_interpreters():
        assert subprocess.run(command, shell=isinstance(command, str)).returncode == 0
    with forked_interpreters(), pytest.raises(FileNotFoundError):
        subprocess.run(["no such command"])
