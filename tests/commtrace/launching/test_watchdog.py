"""Ranks that exceed the deadline report their stacks, and are then killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commtrace.launching.watchdog
from commtrace.launching.watchdog import TimeoutReport, watchdog

ROOT = Path(__file__).parents[3]
WAIT_S = 60

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from commtrace.launching.watchdog import register_rank
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def inner():
    print("here", flush=True); {body}
def outer():
    inner()
register_rank(Path({folder!r}), {rank})
outer()
print("on", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def rank(folder: Path, number: int, body: str, **kwargs: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has reached `body`."""
    program = PROGRAM.format(root=str(ROOT), body=body, folder=str(folder), rank=number)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **kwargs) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            yield process
        finally:
            process.kill()


def ended(folder: Path, *processes: subprocess.Popen[bytes]) -> TimeoutReport:
    """Report of a watchdog whose timeout has expired."""
    with watchdog(folder, 0.0) as verdict:
        assert [each.wait(WAIT_S) for each in processes] == [-signal.SIGKILL] * len(processes)
    return verdict


def functions(verdict: TimeoutReport) -> dict[int, list[tuple[int, str]]]:
    return {rank: [place[1:] for place in stack] for rank, stack in verdict.stacks.items()}


INNER = [(12, "<module>"), (10, "outer"), (8, "inner")]


@pytest.mark.parametrize("body", ["time.sleep(60)", "(9**9**8) % 7"])
def test_a_rank_that_is_late_says_where_its_main_thread_stands(body: str, tmp_path: Path) -> None:
    """The power is a single operation, which holds the interpreter's lock."""
    with rank(tmp_path, 3, body) as late:
        assert functions(ended(tmp_path, late)) == {3: INNER}


def test_a_rank_that_waits_for_another_is_asked_before_that_one_ends(tmp_path: Path) -> None:
    """The first continues as soon as the second ends, which holds the pipe's other end."""
    read, write = os.pipe()
    with (
        rank(tmp_path, 1, "time.sleep(60)", pass_fds=[write]) as second,
        rank(tmp_path, 0, f"os.read({read}, 1)", pass_fds=[read]) as first,
    ):
        os.close(write)
        os.close(read)
        assert functions(ended(tmp_path, first, second)) == {0: INNER, 1: INNER}


def test_a_rank_that_can_not_answer_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commtrace.launching.watchdog, "_GRACE_S", 0.3)
    with rank(tmp_path, 0, "os.kill(os.getpid(), signal.SIGSTOP)") as stopped:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        assert ended(tmp_path, stopped).stacks == {0: []}


def test_a_rank_that_is_gone_is_not_asked(tmp_path: Path) -> None:
    """Its process id may have been reused; here it is this process's."""
    with rank(tmp_path, 0, "sys.exit()") as done, rank(tmp_path, 1, "time.sleep(60)") as late:
        assert done.wait(WAIT_S) == 0
        left = tmp_path / "rank-00000.stack"
        left.write_text(left.read_text().replace(str(done.pid), str(os.getpid())))
        assert functions(ended(tmp_path, late)) == {1: INNER}


def test_ranks_that_are_done_in_time_are_left_alone(tmp_path: Path) -> None:
    for timeout_s in (60.0, None):
        with (
            watchdog(tmp_path, timeout_s) as verdict,
            rank(tmp_path, 0, "sys.stdin.read(); sys.exit()", stdin=subprocess.PIPE) as done,
        ):
            done.communicate(timeout=WAIT_S)
        assert (done.returncode, verdict.stacks) == (0, {})
