"""Facts of its rank and run that a spool records, before and after a process group exists."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder.clock import epoch_ns, now
from commtrace.recorder.events.facts import Facts
from commtrace.tracefile.liveness import boot
from dtensor_core.testing import fake_world


def test_the_clock_and_its_epoch_give_wall_time() -> None:
    assert abs(now() + epoch_ns() - time.time_ns()) < 50_000_000


def test_the_epoch_hardly_moves_between_two_readings() -> None:
    assert abs(epoch_ns() - epoch_ns()) < 5_000_000


def test_processes_of_one_system_have_one_boot() -> None:
    assert boot() == boot() != ""


def test_the_environment_is_believed_until_there_is_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    facts = Facts("op", 0)
    assert (facts.rank, facts.num_ranks) == (3, 8)


@pytest.mark.parametrize("variable", ["", "many", "-1"])
def test_an_environment_that_says_nothing_is_one_rank(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", variable)
    monkeypatch.setenv("WORLD_SIZE", variable)
    facts = Facts("op", 0)
    assert (facts.rank, facts.num_ranks) == (0, 1)


@pytest.mark.parametrize("size", ["1", "8"])
def test_a_process_group_is_believed_more_than_the_environment(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", size)  # 8: of an outer job, whose variables were inherited
    with commtrace.record() as recording, fake_world(4, rank=2):
        dist.all_reduce(torch.ones(1))
    trace = recording.trace()
    assert list(trace.tables["ranks"]["rank"]) == [2]
    assert list(trace.tables["comm"]["rank"]) == [2]
    assert trace.run["world_size"] == 4


def test_the_default_group_is_known_from_a_call_in_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with commtrace.record() as recording, fake_world(4, rank=1):
        dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
    assert recording.trace().run["world_size"] == 4
