"""Stacks are taken while some rank waits, by the ranks that have made no call since."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events import stuck
from commtrace.recorder.host_events.stuck import SECOND_NS, StuckStacks, ThreadWait, stuck_events
from commtrace.tracefile.dump_files import STACKS_REQUEST, request_dumps


class Rank:
    """A rank whose polls are a second apart."""

    def __init__(self, folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.second = 100
        monkeypatch.setattr(stuck, "now", lambda: self.second * SECOND_NS)
        self.kept: list[HostEvent] = []
        self.waits: list[ThreadWait] = []
        self.num_calls = 0
        self.stacks = StuckStacks(
            folder, self.kept.append, lambda: self.waits, lambda: self.num_calls
        )

    def poll(self, seconds: int = 1) -> list[int]:
        """Let time pass; return the seconds, from 100 on, at which stacks were taken."""
        taken: dict[int, None] = {}
        for _ in range(seconds):
            self.second += 1
            before = len(self.kept)
            # Not the main thread, whose stack would be left out as the recording's own.
            thread = threading.Thread(target=self.stacks.poll, args=(0,))
            thread.start()
            thread.join()
            if len(self.kept) > before:
                taken[self.second - 100] = None
        return list(taken)

    def wait(self, *, is_certain: bool = True) -> None:
        """Begin to wait for a call."""
        self.waits = [ThreadWait(self.second * SECOND_NS, threading.get_native_id(), is_certain)]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


def test_a_rank_that_waits_asks_at_times_that_grow(rank: Rank, tmp_path: Path) -> None:
    rank.poll(2)
    rank.wait()
    assert rank.poll(2) == []
    assert not (tmp_path / STACKS_REQUEST).exists()
    assert rank.poll(1) == [5]
    assert (tmp_path / STACKS_REQUEST).exists()
    assert rank.poll(400) == [12, 36, 116, 382]


def test_nothing_is_asked_while_calls_go_on(rank: Rank, tmp_path: Path) -> None:
    rank.wait(is_certain=False)  # such as a receive that was posted early
    for _ in range(20):
        rank.num_calls += 1
        assert rank.poll(2) == []
    assert rank.poll(10) != []


def test_without_a_folder_a_rank_takes_its_own_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(None, monkeypatch)
    rank.wait()
    assert rank.poll(20) == [3, 10]


def test_a_rank_answers_if_it_has_made_no_call_since(rank: Rank, tmp_path: Path) -> None:
    rank.num_calls += 1
    rank.poll(3)
    request_dumps(tmp_path, None, STACKS_REQUEST)
    assert rank.poll(1) == [4]
    request_dumps(tmp_path, [3], STACKS_REQUEST)  # another rank
    assert rank.poll(5) == []


def test_a_rank_that_runs_on_does_not_answer(rank: Rank, tmp_path: Path) -> None:
    for _ in range(3):
        rank.num_calls += 1
        request_dumps(tmp_path, None, STACKS_REQUEST)
        assert rank.poll(1) == []
    rank.num_calls += 1
    assert rank.poll(5) == []


def test_a_rank_that_stops_after_it_was_asked_answers_a_moment_later(
    rank: Rank, tmp_path: Path
) -> None:
    rank.num_calls += 1
    request_dumps(tmp_path, None, STACKS_REQUEST)
    assert rank.poll(5) == [2]


def test_many_requests_are_answered_at_times_that_grow(rank: Rank, tmp_path: Path) -> None:
    rank.poll()
    taken = []
    for _ in range(200):
        request_dumps(tmp_path, None, STACKS_REQUEST)
        taken += rank.poll()
    assert len(taken) < 30


def test_usual_waits_are_asked_about_less_and_less(rank: Rank) -> None:
    taken = []
    for _ in range(200):
        rank.wait()
        taken += rank.poll(5)
    assert len(taken) == 50


def test_a_thread_is_of_interest_in_the_users_code_or_in_a_call() -> None:
    stop = threading.Event()
    ready = threading.Barrier(3)

    def users() -> None:
        ready.wait()
        stop.wait()

    inside = threading.Thread(target=users, name="loader")
    outside = threading.Thread(target=stop.wait, name="helper")
    threads = [inside, outside]
    for each in threads:
        each.start()
    found: list[list[HostEvent]] = []

    def take() -> None:
        ready.wait()
        time.sleep(0.05)
        for in_calls in ((), (outside.native_id or 0,)):
            found.append(stuck_events(7, in_calls))

    taking = threading.Thread(target=take)
    taking.start()
    ready.wait()
    taking.join()
    stop.set()
    for each in threads:
        each.join()
    names = [{event.text for event in events} for events in found]
    assert {"MainThread", "loader"} <= names[0]
    assert "helper" not in names[0]
    assert "helper" in names[1]
    main, *others = found[0]
    assert main.text == "MainThread"
    row: Any = next(each for each in others if each.text == "loader").row(0, 100, -1)
    assert (row.kind, row.at_ns, row.duration_ns) == ("stuck", 107, -1)
    assert (row.source_function, row.thread) == ("users", inside.native_id)
    functions = [line.rpartition(" ")[2] for line in row.stack.splitlines()]
    assert functions[-3:] == ["users", "wait", "wait"]


def stacks(recording: commtrace.Recording) -> list[str]:
    table = recording.trace().tables["host_events"]
    return [
        function
        for kind, function in zip(table["kind"], table["source_function"], strict=True)
        if kind == "stuck"
    ]


@pytest.fixture
def world() -> Any:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_healthy_run_takes_no_stack(world: None) -> None:
    with commtrace.record() as recording:
        for _ in range(45):
            dist.all_reduce(torch.ones(8))
            time.sleep(0.1)
    assert stacks(recording) == []
