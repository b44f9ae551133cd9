"""The run delay of a thread is the time for which it was ready to run but had no core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder import run_delay
from commtrace.recorder.run_delay import RunDelay
from dtensor_core.testing import fake_world

SPIN = "while True: pass"


@pytest.fixture
def other_program_on_this_core() -> Iterator[None]:
    """Pin this thread to a single core, on which another program runs."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen([sys.executable, "-c", SPIN])  # it is pinned to the same core
    try:
        yield
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)


def spin(seconds: float) -> tuple[int, int]:
    """Compute for some time on a core; return it, and the time that passed meanwhile, in ns."""
    begin, on_core = time.perf_counter_ns(), time.thread_time_ns()
    while time.thread_time_ns() - on_core < seconds * 1e9:
        pass
    return time.thread_time_ns() - on_core, time.perf_counter_ns() - begin


@pytest.mark.usefixtures("other_program_on_this_core")
def test_what_a_thread_waits_for_a_core_is_its_run_delay() -> None:
    delay = RunDelay()
    delay.since_last()
    on_core, passed = spin(0.3)
    assert delay.since_last() == pytest.approx(passed - on_core, rel=0.2)


def test_a_thread_that_sleeps_is_not_ready_to_run() -> None:
    delay = RunDelay()
    delay.since_last()
    before = time.perf_counter_ns()
    time.sleep(0.2)
    passed = time.perf_counter_ns() - before
    assert 0 <= delay.since_last() <= passed - 190_000_000


def test_the_first_reading_is_unknown() -> None:
    assert RunDelay().since_last() == -1


@pytest.mark.usefixtures("other_program_on_this_core")
def test_time_without_a_recording_is_no_delay_of_the_next_one() -> None:
    delays = []
    with fake_world(2):
        for _ in range(2):
            with commtrace.record() as recording:
                for _ in range(2):
                    dist.all_reduce(torch.ones(2))
            delays.append(recording.trace().tables["comm"]["run_delay_ns"])
            spin(0.2)
    assert [first for first, _ in delays] == [-1, -1]
    assert all(0 <= second < 100_000_000 for _, second in delays)


def test_a_system_that_does_not_count_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_delay, "_FOLDER", str(tmp_path))
    for text in (None, "", "0 0 0", "12 x 1"):
        if text is not None:
            (tmp_path / "schedstat").write_text(text)
        delay = RunDelay()
        assert [delay.since_last() for _ in range(2)] == [-1, -1]


def test_a_program_that_closes_the_descriptor_keeps_the_file_that_has_its_number(
    tmp_path: Path,
) -> None:
    delay = RunDelay()
    delay.since_last()
    number = delay._descriptor
    assert number >= 0
    os.close(number)
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    try:
        assert own == number
        assert [delay.since_last() for _ in range(2)] == [-1, -1]
        del delay
        assert os.write(own, b"still open")
    finally:
        os.close(own)
