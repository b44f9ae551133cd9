"""Functions that are called before a process ends by itself, in processes without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, sys, time
from functools import partial
from commtrace.exit_handlers import call_at_exit, call_before_leaving
say = partial(print, flush=True)
call_at_exit(partial(say, "exit handler"))
call_before_leaving(lambda frame: say("end"), lambda frame: say("flush"))
"""


def run(program: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, timeout=60, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        ("os._exit(5)", 5, "end\n"),
        ("os._exit(status=5)", 5, "end\n"),
        ("os.execv('/bin/echo', ['echo', 'other'])", 0, "flush\nother\n"),
        ("os.execve('/bin/echo', ['echo', 'other'], {})", 0, "flush\nother\n"),
        ("sys.exit(4)", 4, "exit handler\n"),
        # A forked child leaves in either way, and calls nothing.
        ("os.waitpid(os.fork() or os._exit(2), 0); os._exit(5)", 5, "end\n"),
        ("os.waitpid(os.fork() or sys.exit(2), 0)", 0, "exit handler\n"),
    ],
)
def test_functions_are_called_in_this_process_only(program: str, code: int, text: str) -> None:
    assert run(BEGIN + program) == (code, text)


def test_a_program_that_is_searched_for_is_another_one_too() -> None:
    assert run(BEGIN + "os.execlp('echo', 'echo', 'other')")[1].endswith("flush\nother\n")


def test_a_program_that_does_not_become_another_goes_on(tmp_path: Path) -> None:
    program = f"try:\n    os.execv({str(tmp_path / 'none')!r}, ['none'])\nexcept OSError: say('no')"
    assert run(BEGIN + program) == (0, "flush\nno\nexit handler\n")


def test_no_lock_keeps_a_process_that_ends_itself() -> None:
    begin = time.monotonic()
    program = "import threading; lock = threading.Lock(); lock.acquire()\n"
    program += "call_before_leaving(lock.acquire, lock.acquire); os._exit(5)"
    assert run(BEGIN + program)[0] == 5
    assert time.monotonic() - begin < 30
