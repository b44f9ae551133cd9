"""Calls made right before C++ terminates the process are in the spool."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commtrace.recorder import terminate_handler
from commtrace.tracefile import read_trace

PROGRAM = """
import ctypes, os, sys, threading
import torch, torch.distributed as dist
import commtrace, commtrace.session.flusher

commtrace.session.flusher.FLUSH_INTERVAL_S = 60.0
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
with commtrace.record(sys.argv[1]):
    dist.all_reduce(torch.ones(3))
    terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev
    thread = threading.Thread(target=terminate)
    thread.start()
    thread.join()
"""


RACE = """
from commtrace.recorder import terminate_handler

def write():
    pass

terminate_handler.add_terminate_handler(write)
terminate_handler.remove_terminate_handler(write)
terminate_handler._terminating()
"""

_CAN_END = pytest.mark.skipif(
    terminate_handler._set_terminate is None, reason="no libstdc++ to end the process"
)


@_CAN_END
def test_the_reason_of_an_abort_is_printed_if_the_handler_was_removed_meanwhile() -> None:
    command = [sys.executable, "-c", RACE]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert b"terminate called" in ended.stderr
    assert b"TypeError" not in ended.stderr


@_CAN_END
def test_the_last_call_before_an_abort_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert b"terminate called" in ended.stderr  # by the previous handler
    comm = read_trace(tmp_path / "run.json.spools").tables["comm"]
    assert list(comm["kind"]) == ["all_reduce"]


def test_the_handler_is_taken_out_with_the_last_word() -> None:
    def first() -> None:
        pass

    def second() -> None:
        pass

    terminate_handler.add_terminate_handler(first)
    terminate_handler.add_terminate_handler(second)
    terminate_handler.remove_terminate_handler(first)
    assert terminate_handler._handlers == [second]
    terminate_handler.remove_terminate_handler(second)
    assert terminate_handler._handlers == []
    if terminate_handler._set_terminate is not None:
        # Setting one returns the one in force.
        assert terminate_handler._set_terminate(terminate_handler._before) == (
            terminate_handler._before
        )
