"""Dumps on request and on a signal; the program's own handlers stay."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace.errors import UsageError
from commtrace.process_options import DUMP_SIGNAL_VARIABLE, dump_signal
from commtrace.recorder.stack_dumps import StackDumps, dump_of_process
from commtrace.tracefile.dump_files import (
    REQUEST,
    dump_path,
    read_dump,
    request_dumps,
    stacks_path,
)
from tests.cli.conftest import ROOT


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "rank-00003.spool"


@pytest.fixture
def dumps(spool: Path) -> Iterator[StackDumps]:
    dumps = StackDumps(spool, signal.SIGUSR2)
    yield dumps
    dumps.close()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def no_calls() -> list[dict[str, Any]]:
    return []


def polled_beside(dumps: StackDumps, rank: int = 3) -> None:
    """Poll in another thread, as a recording does."""
    thread = threading.Thread(target=dumps.poll, args=(rank, no_calls))
    thread.start()
    thread.join()


def test_a_request_is_answered_once_with_the_line_of_each_thread(
    dumps: StackDumps, spool: Path
) -> None:
    number = request_dumps(spool.parent, [3])
    polled_beside(dumps)
    dump = read_dump(dump_path(spool))
    assert (dump.rank, dump.pid, dump.request) == (3, os.getpid(), number)
    assert dump.threads[0].name == "MainThread"
    assert any(frame[2] == "polled_beside" for frame in dump.threads[0].frames)
    dump_path(spool).unlink()
    polled_beside(dumps)
    assert not dump_path(spool).exists()


def test_requests_of_others_and_of_before_are_left_alone(tmp_path: Path, spool: Path) -> None:
    request_dumps(tmp_path, None)
    dumps = StackDumps(spool, None)
    dumps.poll(3, no_calls)
    request_dumps(tmp_path, [4])
    dumps.poll(3, no_calls)
    (tmp_path / REQUEST).write_text("nonsense")
    dumps.poll(3, no_calls)
    assert not dump_path(spool).exists()


def test_a_signal_writes_the_stacks_at_once_and_then_a_dump(dumps: StackDumps, spool: Path) -> None:
    os.kill(os.getpid(), signal.SIGUSR2)
    assert "test_a_signal_writes_the_stacks_at_once" in stacks_path(spool).read_text()
    polled_beside(dumps)
    assert read_dump(dump_path(spool)).request == ""
    assert stacks_path(spool).read_text() == ""


def test_nothing_is_left_behind_without_a_dump(spool: Path) -> None:
    StackDumps(spool, signal.SIGUSR2).close()
    assert list(spool.parent.iterdir()) == []


def test_a_handler_of_the_program_is_left_alone(spool: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        dumps = StackDumps(spool, signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR2)
        dumps.close()
        assert seen == [signal.SIGUSR2]
        assert not stacks_path(spool).exists()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_chosen_signal_is_passed_on_to_the_handler_of_the_program(spool: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        dumps = StackDumps(spool, signal.SIGUSR2, is_chosen=True)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert "Current thread" in stacks_path(spool).read_text()
        assert seen == [signal.SIGUSR2]
        dumps.close()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert len(seen) == 2
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_handler_in_c_is_left_alone(spool: Path, tmp_path: Path) -> None:
    with (tmp_path / "own").open("w+") as file:
        faulthandler.register(signal.SIGUSR2, file=file)
        try:
            StackDumps(spool, signal.SIGUSR2).close()
            os.kill(os.getpid(), signal.SIGUSR2)
            file.seek(0)
            assert "Current thread" in file.read()
        finally:
            faulthandler.unregister(signal.SIGUSR2)


def test_a_handler_that_the_program_installs_later_stays(spool: Path) -> None:
    dumps = StackDumps(spool, signal.SIGUSR2)
    seen: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        dumps.close()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert seen == [signal.SIGUSR2]
    finally:
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_a_forked_child_has_the_default_action_again(spool: Path, dumps: StackDumps) -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == b"x"
    os.kill(child, signal.SIGUSR2)
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
    assert os.WTERMSIG(status) == signal.SIGUSR2
    assert stacks_path(spool).read_text() == ""


ENDED = """
import os, signal, sys
from pathlib import Path
from commtrace.recorder.stack_dumps import StackDumps
{before}
dumps = StackDumps(Path({spool!r}), None)
{after}
def asked_to_end():
    os.kill(os.getpid(), signal.SIGTERM)
    print("goes on")
asked_to_end()
"""
OWN_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"


@pytest.mark.parametrize(
    ("before", "after", "code", "has_stacks"),
    [
        ("", "", -signal.SIGTERM, True),
        ("", OWN_HANDLER, 5, False),
        (OWN_HANDLER, "", 5, False),
        ("", f"{OWN_HANDLER}; dumps.close()", 5, False),
        ("", "dumps.close()", -signal.SIGTERM, False),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "", 0, False),
        ("", "pid = os.fork(); pid and sys.exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
         signal.SIGTERM, False),
    ],
)  # fmt: skip
def test_a_process_that_is_asked_to_end_writes_its_stacks_and_ends_as_before(
    before: str, after: str, code: int, has_stacks: bool, spool: Path
) -> None:
    program = ENDED.format(before=before, after=after, spool=str(spool))
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == code
    path = stacks_path(spool)
    assert (path.exists() and "in asked_to_end" in path.read_text()) == has_stacks


def test_a_handler_that_extensions_install_later_stays(spool: Path) -> None:
    dumps = StackDumps(spool, None)
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGTERM, ctypes.c_void_p(1))  # SIG_IGN, without Python's knowledge
    dumps.close()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        libc.signal(signal.SIGTERM, ctypes.c_void_p(0))


def test_a_dump_that_cannot_be_written_fails_nothing(dumps: StackDumps, spool: Path) -> None:
    dump_path(spool).mkdir()
    request_dumps(spool.parent, None)
    dumps.poll(3, no_calls)
    dump_path(spool).rmdir()
    number = request_dumps(spool.parent, None)
    dumps.poll(3, no_calls)
    assert read_dump(dump_path(spool)).request == number


def test_threads_and_calls_are_bounded() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(250)]
    try:
        for thread in threads:
            thread.start()
        dump = dump_of_process(0, "", [{}] * 500)
        assert (len(dump.threads), len(dump.calls)) == (200, 100)
        assert dump.num_left_out >= 50
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", signal.SIGUSR2), ("USR1", signal.SIGUSR1), ("sigusr1", signal.SIGUSR1),
        ("10", 10), ("none", None), ("RTMIN+3", signal.SIGRTMIN + 3),
    ],
)  # fmt: skip
def test_signals_by_name(text: str, number: int | None) -> None:
    assert dump_signal({DUMP_SIGNAL_VARIABLE: text}) == number


@pytest.mark.parametrize("text", ["KILL", "STOP", "SEGV", "0", "-9", "999", "X", "USR1+x", "_DFL"])
def test_other_signals_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot record this process"):
        dump_signal({DUMP_SIGNAL_VARIABLE: text})


def test_a_recording_answers_while_the_main_thread_sleeps(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time, commtrace
        with commtrace.record("run.comm"):
            print("ready", flush=True)
            def asleep():
                sys.stdin.readline()
            asleep()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        folder = tmp_path / "run.comm"
        request_dumps(folder, None)
        path = folder / "rank-00000.dump"
        deadline = threading.Event()
        for _ in range(600):
            if path.exists() or deadline.wait(0.1):
                break
        assert read_dump(path).threads[0].frames[-1][2] == "asleep"
        assert process.communicate("\n", timeout=60)[0] == ""
        assert process.returncode == 0
        assert not (folder / "rank-00000.stacks").exists()
        assert commtrace.read_trace(folder).run["world_size"] == 1
    finally:
        process.kill()
        process.communicate()
