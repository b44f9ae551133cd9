"""The recording of a run that hangs, or loses a rank, states where each rank was."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.consistency import consistency
from commtrace.launching.launcher import LaunchResult, run_script
from commtrace.tracefile import Trace, read_parts

SCRIPT = """
import os, signal, threading, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))

def elsewhere():
    {body}

if dist.get_rank() == 1:
    elsewhere()
else:
    dist.all_reduce(torch.ones(4))
"""


def recorded(
    body: str, tmp_path: Path, timeout_s: float | None = None
) -> tuple[Trace, LaunchResult]:
    """Run two ranks; rank 1 runs `body` in place of a collective."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(body=body))
    folder = tmp_path / "spools"
    result = run_script(script, nproc=2, spool_folder=folder, timeout_s=timeout_s)
    return read_parts([folder]), result


def stacks(trace: Trace, rank: int) -> list[tuple[str, list[str]]]:
    """The user's function of each stuck event of a rank, and the functions of its stack."""
    table = trace.tables["host_events"]
    columns: Any = (table[name] for name in ("rank", "kind", "source_function", "stack"))
    return [
        (function, [line.rpartition(" ")[2] for line in stack.splitlines()])
        for of, kind, function, stack in zip(*columns, strict=True)
        if (of, kind) == (rank, "stuck")
    ]


def test_a_rank_that_holds_pythons_lock_until_the_timeout_has_a_stack(tmp_path: Path) -> None:
    trace, result = recorded("(9**9**8) % 7", tmp_path, timeout_s=20)
    assert sorted(result.stuck) == [0, 1]
    (late,) = stacks(trace, 1)
    assert late[0] == "elsewhere"
    assert stacks(trace, 0)[0][0] == "<module>"
    assert "all_reduce" in stacks(trace, 0)[0][1]
    assert list(trace.tables["ranks"]["exit_code"]) == [-1, -1]


def test_a_rank_that_is_killed_after_a_hang_has_left_its_stack_and_exit_code(
    tmp_path: Path,
) -> None:
    body = "end = time.time() + 8\n    while time.time() < end: pass\n    os.kill(os.getpid(), 9)"
    trace, result = recorded(body, tmp_path)
    assert not result.ok
    assert [function for function, _ in stacks(trace, 1)][:1] == ["elsewhere"]
    assert trace.tables["ranks"]["exit_code"][1] == -signal.SIGKILL


@pytest.mark.parametrize(("code", "stated"), [("os._exit(0)", 0), ("os._exit(7)", 7)])
def test_exit_codes_are_those_of_ranks_that_ended_first(
    code: str, stated: int, tmp_path: Path
) -> None:
    trace, _ = recorded(code, tmp_path)
    assert trace.tables["ranks"]["exit_code"][1] == stated
    assert stacks(trace, 1) == []


def test_a_rank_that_crashes_in_native_code_leaves_its_line(tmp_path: Path) -> None:
    trace, result = recorded("import ctypes; ctypes.string_at(0)", tmp_path)
    assert (result.exit_code, result.failed_rank) == (128 + signal.SIGSEGV, 1)
    assert [function for function, _ in stacks(trace, 1)] == ["elsewhere"]
    problems = consistency(load(trace))
    fault = problems[problems["is_fault"]].iloc[0]
    assert fault["ranks"] == "1"
    crashed = "rank 1 crashed in native code: signal 11 (SIGSEGV) at train.py:9"
    assert crashed in fault["explanation"].lower().replace("sigsegv", "SIGSEGV")


def test_a_program_that_handles_crashes_itself_keeps_its_file(tmp_path: Path) -> None:
    own = tmp_path / "crash.txt"
    body = f"import ctypes, faulthandler; file = open({str(own)!r}, 'w'); "
    body += "faulthandler.enable(file=file); ctypes.string_at(0)"
    trace, _ = recorded(body, tmp_path)
    assert "Segmentation fault" in own.read_text("utf-8")
    assert stacks(trace, 1) == []
