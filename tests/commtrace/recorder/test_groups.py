"""Groups: described once, told apart by identity, not kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder.groups import Groups
from dtensor_core.testing import fake_world, run_threads
from tests.commtrace.recorder.recorded import calls, groups


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(4, rank=2):
        yield


def test_a_group_knows_its_ranks_and_this_ones_place(world: None) -> None:
    group = Groups().of(dist.new_group([0, 2, 3]))
    assert (group.ranks, group.rank, group.group_rank) == ((0, 2, 3), 2, 1)
    assert [group.global_rank(i) for i in (0, 2, -1, 3)] == [0, 3, -1, -1]
    assert [group.distance(root) for root in (0, 1, 2)] == [1, 0, 2]


def test_a_group_is_described_once(world: None) -> None:
    book, pair = Groups(), dist.new_group([2, 3])
    assert book.of(pair) is book.of(pair)
    assert [group.ranks for group in book] == [(2, 3)]


def test_a_group_is_not_kept_alive() -> None:
    book = Groups()
    with fake_world(2):
        process_group: Any = dist.new_group([0, 1])
        reference = weakref.ref(process_group)
        book.of(process_group)
        dist.destroy_process_group(process_group)
        del process_group
    gc.collect()
    assert reference() is None
    assert list(book) == []


def test_worlds_that_follow_each_other_are_told_apart_by_their_ranks() -> None:
    with commtrace.record() as recording:
        for size in (2, 2, 4):
            with fake_world(size):
                dist.all_reduce(torch.ones(1))
    assert [(row.name, row.ranks) for row in groups(recording)] == [
        ("0", "0,1"), ("0#2", "0,1,2,3"),
    ]  # fmt: skip
    assert [event.group for event in calls(recording)] == ["0", "0", "0#2"]


def test_a_new_recording_does_not_remember_the_names_of_the_last() -> None:
    for size in (2, 4):
        with fake_world(size), commtrace.record() as recording:
            dist.all_reduce(torch.ones(1))
        assert [row.name for row in groups(recording)] == ["0"]


def per_thread() -> tuple[list[int], list[int]]:
    with commtrace.record(detail="collective") as recording:
        for _ in range(3):
            dist.all_reduce(torch.ones(2))
    events = calls(recording)
    return [event.rank for event in events], [event.seq for event in events]


def test_ranks_that_are_threads_each_record_their_own_calls() -> None:
    for rank, (ranks, seqs) in enumerate(run_threads(per_thread, 4)):
        assert ranks == [rank] * 3
        assert seqs == [0, 1, 2]
