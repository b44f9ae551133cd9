"""Recorded fields of calls in all forms that torch.distributed has, on three gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from dtensor_core.testing import run_processes
from tests.commtrace.recorder.recorded import calls

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


def x(size: int = 4) -> torch.Tensor:
    return torch.ones(size)


def tagged() -> None:
    if dist.get_rank() == 0:
        dist.send(x(), 1, tag=5)
        dist.recv(x(), 1, tag=6)
    elif dist.get_rank() == 1:
        dist.recv(x(), 0, tag=5)
        dist.send(x(), 0, tag=6)


def by_ranks_of_the_group() -> None:
    group: Any = dist.new_group([1, 2])
    if dist.get_rank() == 1:
        dist.send(x(), group=group, group_dst=1)
        dist.isend(x(), group=group, group_dst=1).wait()  # type: ignore[union-attr]
    elif dist.get_rank() == 2:
        dist.recv(x(), group=group, group_src=0)
        dist.irecv(x(), group=group, group_src=0).wait()  # type: ignore[union-attr]
    if dist.get_rank():
        dist.broadcast(x(), group=group, group_src=0)
        dist.reduce(x(), group=group, group_dst=1)


def batch() -> None:
    to, of = (dist.get_rank() + 1) % 3, (dist.get_rank() - 1) % 3
    operations = [dist.P2POp(dist.isend, x(), to), dist.P2POp(dist.irecv, x(8)[:4], of)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def coalesced() -> None:
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(x(4))
        dist.all_reduce(x(2))
    manager.wait()
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(x(12), x(4))
        dist.all_gather_into_tensor(x(6), x(2))
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(x(4), x(12))
        dist.reduce_scatter_tensor(x(2), x(6))


def uneven() -> None:
    rank = dist.get_rank()
    sent, received = [rank + each for each in range(3)], [rank + each for each in range(3)]
    dist.all_to_all_single(x(sum(received)), x(sum(sent)), received, sent)
    dist.all_to_all([x(2) for _ in range(3)], [x(2) for _ in range(3)])


def barriers() -> None:
    dist.barrier()
    dist.monitored_barrier()


def recorded(function: Callable[[], Any]) -> list[Any]:
    with commtrace.record(detail="collective") as recording:
        function()
    found = calls(recording)
    dist.barrier()
    return found


SEND, RECV = ("send", 16, 16), ("recv", 16, 0)

# function -> for each rank: kind, payload and wire bytes, root, peer. Three ranks, floats.
EXPECTED: dict[Callable[[], None], list[list[tuple[Any, ...]]]] = {
    tagged: [
        [(*SEND, -1, 1), (*RECV, -1, 1)],
        [(*RECV, -1, 0), (*SEND, -1, 0)],
        [],
    ],
    by_ranks_of_the_group: [
        [],
        [
            (*SEND, -1, 2), (*SEND, -1, 2),
            ("broadcast", 16, 16, 1, -1), ("reduce", 16, 16, 2, -1),
        ],
        [
            (*RECV, -1, 1), (*RECV, -1, 1),
            ("broadcast", 16, 0, 1, -1), ("reduce", 16, 0, 2, -1),
        ],
    ],
    batch: [
        [(*SEND, -1, (rank + 1) % 3), (*RECV, -1, (rank - 1) % 3)] for rank in range(3)
    ],
    coalesced: [
        [
            ("all_reduce", 24, 32, -1, -1),
            ("all_gather", 72, 48, -1, -1),
            ("reduce_scatter", 72, 48, -1, -1),
        ]
    ] * 3,
    # Of the 3 + 3 * rank numbers that a rank has, it keeps 2 * rank.
    uneven: [
        [
            ("all_to_all", 4 * (3 + 3 * rank), 4 * (3 + rank), -1, -1),
            ("all_to_all", 24, 16, -1, -1),
        ]
        for rank in range(3)
    ],
    barriers: [[("barrier", 0, 0, -1, -1)] * 2] * 3,
}  # fmt: skip


@pytest.mark.parametrize("function", EXPECTED, ids=lambda function: function.__name__)
def test_each_form_is_recorded_as_what_it_is(function: Any) -> None:
    for events, expected in zip(
        run_processes(recorded, 3, function), EXPECTED[function], strict=True
    ):
        assert [
            (each.kind, each.payload_bytes, each.wire_bytes, each.root, each.peer)
            for each in events
            if each.kind != "barrier" or function is barriers
        ] == expected
        assert all(each.complete_ns >= each.issue_ns for each in events)
        assert {each.source_function for each in events} <= {function.__name__}


def test_splits_are_the_bytes_to_and_from_each_rank() -> None:
    for rank, (single, lists) in enumerate(run_processes(recorded, 3, uneven)):
        # The rows that a rank sends to each, and those that it receives, are `rank + each`.
        splits = ",".join(str(4 * (rank + each)) for each in range(3))
        assert (single.input_splits, single.output_splits) == (splits, splits)
        assert (lists.input_splits, lists.output_splits) == ("8,8,8", "8,8,8")


def objects() -> None:
    rank, here = dist.get_rank(), dist.get_rank() == 0
    dist.all_gather_object([None] * 3, rank)
    dist.gather_object(rank, [None] * 3 if here else None, dst=0)
    dist.scatter_object_list([None], [1, 2, 3] if here else None, src=0)
    dist.broadcast_object_list([rank], src=1)
    if rank == 0:
        dist.send_object_list([1], 1)
    elif rank == 1:
        dist.recv_object_list([None], 0)


def test_collectives_of_objects_are_labelled_on_every_rank() -> None:
    for rank, events in enumerate(run_processes(recorded, 3, objects)):
        assert {each.carries for each in events} == {"objects"}
        assert {each.source_function for each in events} == {"objects"}
        kinds = {each.kind for each in events}
        assert kinds >= {"all_gather", "gather", "scatter", "broadcast"}
        assert ("send" in kinds, "recv" in kinds) == (rank == 0, rank == 1)


def ways_to_wait() -> None:
    waited: Any = dist.all_reduce(x(), async_op=True)
    waited.wait()
    waited.wait()
    future: Any = dist.all_reduce(x(), async_op=True)
    future.get_future().wait()
    polled: Any = dist.all_reduce(x(), async_op=True)
    while not polled.is_completed():
        pass
    dist.all_reduce(x(), async_op=True)


def test_completion_is_known_however_a_call_is_waited_for() -> None:
    for events in run_processes(recorded, 3, ways_to_wait):
        assert [each.is_async for each in events] == [True] * 4
        assert all(each.complete_ns >= each.issue_ns for each in events)
        # The blocked time of calls without a `wait` is not known.
        assert [each.blocked_ns >= 0 for each in events] == [True, False, False, False]
