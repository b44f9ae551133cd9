"""Recorded fields of each collective of torch.distributed, compared with values derived by hand.

Four ranks, this being rank 1; tensors of 8 floats: 32 bytes, 8 of them a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import call, calls, groups

SIZE, RANK = 4, 1
WORLD = range(SIZE)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(SIZE, rank=RANK):
        yield


def x(size: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype)


def per_rank(size: int) -> list[torch.Tensor]:
    return [x(size) for _ in WORLD]


# name -> call, kind, native operator, input shapes, output shapes, payload, wire bytes
CALLS: dict[str, tuple[Callable[[], Any], str, str, str, str, int, int]] = {
    "all_reduce": (
        lambda: dist.all_reduce(x()), "all_reduce", "allreduce_", "[8]", "[8]", 32, 48,
    ),
    "all_gather": (
        lambda: dist.all_gather(per_rank(8), x()),
        "all_gather", "allgather_", "[8]", "[8];[8];[8];[8]", 128, 96,
    ),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(x(32), x()),
        "all_gather", "_allgather_base_", "[8]", "[32]", 128, 96,
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(x(2), per_rank(2)),
        "reduce_scatter", "reduce_scatter_", "[2];[2];[2];[2]", "[2]", 32, 24,
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(x(2), x()),
        "reduce_scatter", "_reduce_scatter_base_", "[8]", "[2]", 32, 24,
    ),
    "all_to_all": (
        lambda: dist.all_to_all(per_rank(2), per_rank(2)),
        "all_to_all", "alltoall_", "[2];[2];[2];[2]", "[2];[2];[2];[2]", 32, 24,
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(x(), x()),
        "all_to_all", "alltoall_base_", "[8]", "[8]", 32, 24,
    ),
    "uneven all_to_all_single": (  # this rank keeps 3 of its 8 numbers
        lambda: dist.all_to_all_single(x(4), x(), [1, 1, 1, 1], [1, 3, 2, 2]),
        "all_to_all", "alltoall_base_", "[8]", "[4]", 32, 20,
    ),
    "broadcast": (
        lambda: dist.broadcast(x(), src=0), "broadcast", "broadcast_", "[8]", "[8]", 32, 32,
    ),
    "broadcast to the last of the ring": (
        lambda: dist.broadcast(x(), src=2), "broadcast", "broadcast_", "[8]", "[8]", 32, 0,
    ),
    "reduce": (lambda: dist.reduce(x(), dst=0), "reduce", "reduce_", "[8]", "[8]", 32, 32),
    "reduce to this rank": (
        lambda: dist.reduce(x(), dst=1), "reduce", "reduce_", "[8]", "[8]", 32, 0,
    ),
    "gather": (
        lambda: dist.gather(x(), dst=0), "gather", "gather_", "[8]", "", 128, 32,
    ),
    "gather to this rank": (
        lambda: dist.gather(x(), per_rank(8), dst=1),
        "gather", "gather_", "[8]", "[8];[8];[8];[8]", 128, 0,
    ),
    "scatter": (lambda: dist.scatter(x(2), src=0), "scatter", "scatter_", "", "[2]", 32, 0),
    "scatter from this rank": (
        lambda: dist.scatter(x(2), per_rank(2), src=1),
        "scatter", "scatter_", "[2];[2];[2];[2]", "[2]", 32, 24,
    ),
    "send": (lambda: dist.send(x(), 3), "send", "send", "[8]", "", 32, 32),
    "recv": (lambda: dist.recv(x(), 3), "recv", "recv_", "", "[8]", 32, 0),
    "barrier": (dist.barrier, "barrier", "barrier", "", "", 0, 0),
    "all_reduce_coalesced": (
        lambda: dist.all_reduce_coalesced([x(), x(2)]),
        "all_reduce", "allreduce_coalesced_", "[8];[2]", "[8];[2]", 40, 60,
    ),
    "no numbers at all": (
        lambda: dist.all_reduce(x(0)), "all_reduce", "allreduce_", "[0]", "[0]", 0, 0,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_recorded_with_its_shapes_and_bytes(name: str) -> None:
    function, kind, native_op, inputs, outputs, payload, wire = CALLS[name]
    with commtrace.record() as recording:
        function()
    event = call(recording)
    assert (event.kind, event.native_op) == (kind, f"c10d::{native_op}")
    assert (event.input_shapes, event.output_shapes) == (inputs, outputs)
    assert (event.payload_bytes, event.wire_bytes) == (payload, wire)
    assert event.rank == RANK
    assert not event.is_async


@pytest.mark.parametrize("op", ["sum", "avg", "product", "min", "max", "band", "bor", "bxor"])
def test_the_reduce_op_is_reported(op: str) -> None:
    with commtrace.record() as recording:
        dist.all_reduce(x(dtype=torch.int32), op=getattr(dist.ReduceOp, op.upper()))
    assert call(recording).reduce_op == op


def test_a_call_without_reduction_has_no_reduce_op() -> None:
    with commtrace.record() as recording:
        dist.barrier()
    assert call(recording).reduce_op == ""


def test_root_and_peer_are_global_ranks_also_within_a_smaller_group() -> None:
    with commtrace.record() as recording:
        group: Any = dist.new_group([1, 3])
        dist.broadcast(x(), src=3, group=group)
        dist.send(x(), 3, group=group)
    broadcast, send = [event for event in calls(recording) if event.kind != "barrier"]
    assert (broadcast.root, broadcast.peer) == (3, -1)
    assert (send.root, send.peer) == (-1, 3)
    assert broadcast.wire_bytes == 0  # the last of two


def test_groups_are_described() -> None:
    with commtrace.record() as recording:
        group: Any = dist.new_group([1, 3], group_desc="pair")
        dist.all_reduce(x())
        dist.all_reduce(x(), group=group)
    world, pair = groups(recording)
    assert (world.ranks, world.size, world.description) == ("0,1,2,3", 4, "default_pg")
    assert (pair.ranks, pair.size, pair.description) == ("1,3", 2, "pair")
    assert {world.backend, pair.backend} == {"fake"}
    assert {event.group for event in calls(recording)} == {world.name, pair.name}


def test_an_axis_of_a_device_mesh_owns_its_group() -> None:
    with commtrace.record() as recording:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dist.all_reduce(x(), group=mesh.get_group("tp"))
    assert [row.mesh_axis for row in groups(recording) if row.size == 2] == ["tp"]


def test_calls_are_numbered_on_the_rank_and_within_their_group() -> None:
    group = dist.new_group([1, 3])
    with commtrace.record() as recording:
        for each in (None, group, None, None, group):
            dist.all_reduce(x(), group=each)
    events = calls(recording)
    assert [event.id for event in events] == [0, 1, 2, 3, 4]
    assert [event.seq for event in events] == [0, 0, 1, 2, 1]


def test_the_element_type_is_reported() -> None:
    with commtrace.record() as recording:
        dist.all_reduce(x(dtype=torch.bfloat16))
    event = call(recording)
    assert (event.dtype, event.payload_bytes) == ("bfloat16", 16)


def test_an_async_call_is_marked_as_one() -> None:
    with commtrace.record() as recording:
        dist.all_reduce(x(), async_op=True).wait()  # type: ignore[union-attr]
        dist.isend(x(), 3).wait()  # type: ignore[union-attr]
        dist.irecv(x(), 3).wait()  # type: ignore[union-attr]
    assert [event.is_async for event in calls(recording)] == [True, True, True]


def test_a_receive_from_anyone_has_no_peer() -> None:
    with commtrace.record() as recording:
        dist.irecv(x(), tag=4)
    event = call(recording)
    assert (event.native_op, event.peer, event.tag) == ("c10d::recv_any_source_", -1, 4)
    assert (event.input_shapes, event.output_shapes) == ("", "[8]")
    assert (event.payload_bytes, event.wire_bytes) == (32, 0)


def test_a_batch_of_transfers_is_one_call_for_each() -> None:
    transfers = [dist.P2POp(dist.isend, x(), 3, tag=8), dist.P2POp(dist.irecv, x(), 0)]
    with commtrace.record() as recording:
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
    found = [(event.kind, event.peer, event.tag) for event in calls(recording)]
    assert found == [("send", 3, 8), ("recv", 0, 0)]
