"""Groups are described once, distinguished by identity, and not kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.event import GroupRow
from commtrace.recorder.events.groups import Groups
from commtrace.tracefile import read_trace
from dtensor_core.testing import fake_world, run_processes, run_threads
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


def test_worlds_that_follow_each_other_are_distinguished() -> None:
    with commtrace.record() as recording:
        for size in (2, 2, 4):
            with fake_world(size):
                dist.all_reduce(torch.ones(1))
    assert [(row.name, row.ranks) for row in groups(recording)] == [
        ("0", "0,1"), ("0#2", "0,1"), ("0#3", "0,1,2,3"),
    ]  # fmt: skip
    assert [(event.group, event.seq) for event in calls(recording)] == [
        ("0", 0), ("0#2", 0), ("0#3", 0),
    ]  # fmt: skip


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


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_mesh_that_takes_over_a_group_names_its_axis(
    where: str, world: None, tmp_path: Path
) -> None:
    whole = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    pair: Any = dist.new_group([2, 3])
    taken = dist.DeviceMesh.from_group(pair, "cpu", mesh_dim_names=("mine",))
    nameless = dist.init_device_mesh("cpu", (2, 2))
    path = tmp_path / "run.json"
    with commtrace.record(path if where == "file" else None) as recording:
        for group in (whole.get_group(), taken.get_group(), nameless.get_group(1)):
            dist.all_reduce(torch.ones(2), group=group)
    trace = read_trace(tmp_path / "run.json.spools" if where == "file" else recording.save(path))
    rows = [GroupRow(*row) for row in trace.rows("groups")]
    assert [(row.ranks, row.mesh_axis) for row in rows] == [
        ("0,1,2,3", "dp"), ("2,3", "mine"), ("2,3", "axis1"),
    ]  # fmt: skip


def test_a_group_has_its_own_order_of_ranks(world: None) -> None:
    with commtrace.record() as recording:
        group: Any = dist.new_group([3, 2, 0], sort_ranks=False)
        dist.broadcast(torch.ones(2), group=group, group_src=0)
        dist.broadcast(torch.ones(2), src=0, group=group)
        dist.send(torch.ones(2), group=group, group_dst=2)
    assert [row.ranks for row in groups(recording)] == ["3,2,0"]
    found = [(each.root, each.peer) for each in calls(recording)]
    assert found == [(3, -1), (0, -1), (-1, 0)]


def make_and_destroy() -> list[Any]:
    with commtrace.record(detail="collective") as recording:
        for ranks in ([0, 1, 2], [0, 1, 2], [0, 1]):
            group: Any = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                dist.all_reduce(torch.ones(2), group=group)
                dist.destroy_process_group(group)
            del group
            gc.collect()
    ranks_of = {row.name: row.ranks for row in groups(recording)}
    return [(ranks_of[each.group], each.seq) for each in calls(recording)]


def test_groups_that_are_destroyed_and_made_again_are_counted_apart() -> None:
    for rank, found in enumerate(run_processes(make_and_destroy, 3)):
        expected = [("0,1,2", 0), ("0,1,2", 0), ("0,1", 0)]
        assert found == expected[: 3 if rank < 2 else 2]
