"""Processes that are ranks end together, with their descendants, and on a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import commtrace.launching.processes
from commtrace.launching.processes import Ended, grace_s, run_ranks

ROOT = Path(__file__).parents[3]
PREAMBLE = """
import os, signal, subprocess, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[1]
def note(what):
    with open(os.path.join(folder, f"{what}-{rank}"), "w") as file:
        print(os.getpid(), file=file)
"""


def commands(body: str, folder: Path, num_ranks: int) -> tuple[list[str], list[dict[str, str]]]:
    environments = [{**os.environ, "RANK": str(rank)} for rank in range(num_ranks)]
    return [sys.executable, "-c", PREAMBLE + body, str(folder)], environments


def never() -> bool:
    return False


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
    return not found.stdout.startswith(b"Z") and bool(found.stdout.strip())


def noted(folder: Path, what: str, ranks: Sequence[int]) -> list[int]:
    """Process ids of the ranks that have written a note, once all have."""
    paths = [folder / f"{what}-{rank}" for rank in ranks]
    until = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(path.read_text()) for path in paths]


def test_exit_codes_are_those_of_the_ranks(tmp_path: Path) -> None:
    ended = run_ranks(*commands("", tmp_path, 2), is_over=never)
    assert ended == Ended({0: 0, 1: 0})


def test_a_crash_is_a_ranks_own_end_even_if_its_peer_fails_first(tmp_path: Path) -> None:
    body = """
if rank == 0:
    while not os.path.exists(os.path.join(folder, "here-1")):
        time.sleep(0.01)
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
note("here")
time.sleep(60)
"""
    ended = run_ranks(*commands(body, tmp_path, 2), is_over=never)
    assert ended.own == {0: 1, 1: -signal.SIGSEGV}


def test_one_that_fails_ends_the_others_after_a_moment(tmp_path: Path) -> None:
    body = """
note("here")
if rank == 1:
    while not os.path.exists(os.path.join(folder, "here-0")):
        time.sleep(0.01)
    sys.exit(7)
time.sleep(0.2)
note("after")
time.sleep(60)
"""
    ended = run_ranks(*commands(body, tmp_path, 2), is_over=never)
    assert ended == Ended({0: -signal.SIGTERM, 1: 7}, failed_first=(1,))
    assert (tmp_path / "after-0").exists()


def test_what_ranks_have_started_ends_with_one_that_fails(tmp_path: Path) -> None:
    body = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(os.path.join(folder, f"child-{rank}"), "w") as file:
    print(child.pid, file=file)
os._exit(rank)
"""
    ended = run_ranks(*commands(body, tmp_path, 2), is_over=never)
    assert ended.exit_codes[1] == 1
    until = time.monotonic() + 10
    while any(map(is_running, noted(tmp_path, "child", range(2)))):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_ranks_end_when_it_is_over(tmp_path: Path) -> None:
    ended = run_ranks(
        *commands("note('here'); time.sleep(600)", tmp_path, 1),
        is_over=lambda: (tmp_path / "here-0").exists(),
    )
    assert ended == Ended({0: -signal.SIGTERM})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_goes_to_the_ranks_and_handlers_come_back(
    number: signal.Signals, tmp_path: Path
) -> None:
    body = f"signal.signal({int(number)}, lambda *_: sys.exit(5)); note('here'); time.sleep(600)"
    before = signal.getsignal(number)

    def send() -> None:
        noted(tmp_path, "here", range(2))
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    ended = run_ranks(*commands(body, tmp_path, 2), is_over=never)
    thread.join()
    assert ended == Ended({0: 5, 1: 5}, signal=number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_asks_is_told_of_ranks_that_do_not_end_and_a_second_signal_kills_them(
    number: signal.Signals, tmp_path: Path
) -> None:
    body = f"signal.signal({int(number)}, signal.SIG_IGN if rank else signal.SIG_DFL)\n"
    body += "note('here')\nwhile True: time.sleep(1)"
    told: list[tuple[int, list[int], float]] = []
    at_s: list[float] = []

    def on_wait(*what: object) -> None:
        told.append(what)  # type: ignore[arg-type]
        at_s.append(time.monotonic())
        os.kill(os.getpid(), number)

    def send() -> None:
        noted(tmp_path, "here", range(3))
        at_s.append(time.monotonic())
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    ended = run_ranks(*commands(body, tmp_path, 3), is_over=never, on_wait=on_wait)
    thread.join()
    at_s.append(time.monotonic())
    assert ended == Ended({0: -number, 1: -signal.SIGKILL, 2: -signal.SIGKILL}, signal=number)
    assert told == [(number, [1, 2], grace_s(number))]
    asked, said, killed = at_s
    assert said - asked < 5
    assert killed - said < 5 < grace_s(number)


def test_ranks_that_ignore_ctrl_c_are_killed_sooner_than_those_of_a_batch_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grace_s(signal.SIGINT) == 10 < grace_s(signal.SIGTERM) == 30
    monkeypatch.setattr(commtrace.launching.processes, "_GRACE_S", {signal.SIGINT: 0.5})
    body = "signal.signal(signal.SIGINT, signal.SIG_IGN); note('here')\ntime.sleep(600)"

    def send() -> None:
        noted(tmp_path, "here", [0])
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    told: list[object] = []
    ended = run_ranks(
        *commands(body, tmp_path, 1), is_over=never, on_wait=lambda *what: told.append(what)
    )
    thread.join()
    assert ended == Ended({0: -signal.SIGKILL}, signal=signal.SIGINT)
    assert told == [(signal.SIGINT, [0], 0.5)]


def test_ranks_that_end_when_asked_are_not_told_of(tmp_path: Path) -> None:
    told: list[object] = []
    body = "note('here')\nif rank == 1:\n    sys.exit(7)\ntime.sleep(600)"
    run_ranks(*commands(body, tmp_path, 2), is_over=never, on_wait=lambda *what: told.append(what))
    assert told == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """This is the situation under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        body = f"note('here'); os.kill({os.getpid()}, signal.SIGHUP); time.sleep(0.3)"
        assert run_ranks(*commands(body, tmp_path, 1), is_over=never) == Ended({0: 0})
    finally:
        signal.signal(signal.SIGHUP, before)


def test_none_is_left_where_one_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, environments = commands("note('here'); time.sleep(600)", tmp_path, 1)
    popen, started = subprocess.Popen, []

    def start(*args: object, **kwargs: object) -> object:
        if started:
            noted(tmp_path, "here", [0])
            raise OSError("no more processes")
        started.append(popen(*args, **kwargs))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match="no more processes"):
        run_ranks(command, environments * 2, is_over=never)
    assert started[0].poll() == -signal.SIGKILL


def test_without_the_main_thread_no_handler_is_touched(tmp_path: Path) -> None:
    found: list[Ended] = []
    thread = threading.Thread(
        target=lambda: found.append(run_ranks(*commands("", tmp_path, 1), is_over=never))
    )
    thread.start()
    thread.join(60)
    assert found == [Ended({0: 0})]
