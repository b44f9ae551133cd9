"""Calls that wait for other ranks through the store are events; their functions come back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import new_group as imported_before
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import commtrace
from commtrace.group_request import GroupRequest, parsed_request
from commtrace.recorder import HOST_EVENTS
from commtrace.recorder.host_events import store_calls
from tests.commtrace.recorder.host_events.test_host_events import events

KINDS = ("new_group", "init_process_group", "destroy_process_group", "store")


def found(recording: commtrace.Recording) -> list[tuple[str, str]]:
    return [(row["kind"], row["text"]) for row in events(recording, *KINDS)]


@pytest.fixture
def world() -> Iterator[dist.Store]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("make", [dist.new_group, imported_before])
def test_a_new_group_is_an_event_with_members_backend_and_name(make: Any, world: Any) -> None:
    with commtrace.record() as recording:
        one = make([0], backend="gloo")
        other = make()
    rows = events(recording, "new_group")
    assert [parsed_request(row["text"]) for row in rows] == [
        GroupRequest((0,), "gloo", one.group_name),
        GroupRequest(None, "", other.group_name),
    ]
    assert [row["id"] for row in rows] == [0, 1]
    assert all(row["duration_ns"] > 0 for row in rows)
    assert rows[0]["source_function"] == sys._getframe().f_code.co_name


def test_groups_of_meshes_and_subgroups_are_events() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with commtrace.record() as recording:
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            of_mesh = len(events(recording, "new_group"))
            dist.new_subgroups(2)
        requests = [parsed_request(text) for _, text in found(recording)]
    finally:
        dist.destroy_process_group()
    assert of_mesh >= 2
    members = [each.ranks for each in requests if each is not None]
    assert members[-2:] == [(0, 1), (2, 3)]
    assert {(0, 2), (0, 1)} <= set(members[:of_mesh])


def test_a_group_that_is_refused_states_the_exception(world: Any) -> None:
    with commtrace.record() as recording, pytest.raises(ValueError, match=r"Rank 9|world size"):
        dist.new_group([9])
    ((_, text),) = found(recording)
    assert parsed_request(text) == GroupRequest((9,), raised="ValueError")


def test_the_default_group_is_initialized_and_destroyed() -> None:
    with commtrace.record() as recording:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
    assert found(recording) == [
        ("init_process_group", "backend=gloo"),
        ("destroy_process_group", ""),
    ]


def test_a_destruction_by_a_name_that_was_imported_before_is_noticed(world: Any) -> None:
    destroy = dist.destroy_process_group
    with commtrace.record() as recording:
        destroy()
    assert {kind for kind, _ in found(recording)} == {"destroy_process_group"}


def test_a_long_wait_for_a_key_is_an_event_and_a_short_one_is_not(
    world: dist.Store,
) -> None:
    with commtrace.record() as recording:
        world.set("here", "1")
        world.get("here")
        with pytest.raises(RuntimeError):
            world.wait(["never", "ever"], timedelta(milliseconds=700))
    assert [text.partition(" raised=")[0] for _, text in found(recording)][-1] == "wait never, ever"
    assert {kind for kind, _ in found(recording)} == {"store"}
    assert all("here" not in text for _, text in found(recording))
    (stack,) = {each["stack"] for each in events(recording, "store")}
    assert stack.endswith(" test_a_long_wait_for_a_key_is_an_event_and_a_short_one_is_not")


def test_one_that_goes_on_is_written_and_counts_as_a_wait(world: dist.Store) -> None:
    waits: list[Any] = []

    with commtrace.record() as recording:
        source = next(
            each for each in HOST_EVENTS._sources if isinstance(each, store_calls.StoreCalls)
        )

        def slow(ranks: Any) -> None:
            time.sleep(0.8)
            waits.extend(HOST_EVENTS.waits())

        source._observed(slow, "new_group", store_calls._of_new_group, 0)([0, 1])
    assert len(waits) == 1
    first, last = events(recording, "new_group")
    assert (first["duration_ns"], first["at_ns"]) == (-1, last["at_ns"])
    assert last["duration_ns"] > 700_000_000
    assert first["text"] == "ranks=0,1"
    assert HOST_EVENTS.waits() == []


def test_all_functions_come_back() -> None:
    def functions() -> list[Any]:
        return [vars(owner).get(name) for owner, name, *_ in store_calls._functions() if owner]

    before = functions()
    with commtrace.record():
        during = functions()
        kept = dist.new_group
    assert all(
        one is not other for one, other in zip(before, during, strict=True) if one is not None
    )
    assert functions() == before
    assert kept is dist.new_group
