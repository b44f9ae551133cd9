"""A process that is not done in time ends, and says where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commtrace.deadline import read_stuck

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from commtrace.deadline import end_by
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def inner():
    {body}
def outer():
    inner()
end_by({timeout}, Path({folder!r}), 3)
outer()
"""

LATE = """a1
Timeout (0:00:03)!
Thread 0x00000000000000b2 (most recent call first):
  File "threading.py", line 9 in wait

Thread 0x00000000000000a1 (most recent call first):
  File "train.py", line 7 in step
  File "train.py", line 3 in <module>
"""


def run(folder: Path, body: str, timeout: float) -> int:
    program = PROGRAM.format(root=str(ROOT), body=body, timeout=timeout, folder=str(folder))
    return subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode


@pytest.mark.parametrize("body", ["time.sleep(60)", "(9**9**8) % 7"])
def test_where_the_main_thread_stood_is_left_behind(body: str, tmp_path: Path) -> None:
    """The power is one operation, which holds the interpreter's lock."""
    assert run(tmp_path, body, 0.3) == 1
    stuck = read_stuck(tmp_path)
    assert {rank: [place[1:] for place in stack] for rank, stack in stuck.items()} == {
        3: [(12, "<module>"), (10, "outer"), (8, "inner")]
    }


def test_a_process_that_is_ended_because_of_another_says_so_too(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGTERM)"
    assert run(tmp_path, body, 60) == -signal.SIGTERM
    assert read_stuck(tmp_path) == {}
    (tmp_path / "rank-00001.stuck").write_text(LATE)
    stuck = read_stuck(tmp_path)
    assert stuck[1] == [("train.py", 3, "<module>"), ("train.py", 7, "step")]
    assert stuck[3][-1][2] == "inner"


def test_a_process_that_is_done_in_time_leaves_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "pass", 60) == 0
    assert read_stuck(tmp_path) == {}
