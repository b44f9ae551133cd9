"""Every collective of c10d as a function of the rank, run on threads and on gloo processes.

Each returns the rank's final values. They are module-level, so that processes can import them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def _mine(*shape: int) -> torch.Tensor:
    """Different numbers on each rank."""
    size = int(torch.Size(shape).numel())
    return torch.arange(1.0, size + 1).view(shape) * (dist.get_rank() + 2)


def all_reduce(op: str) -> torch.Tensor:
    value = _mine(3) if op in ("sum", "product", "min", "max") else _mine(3).long()
    dist.all_reduce(value, op=getattr(dist.ReduceOp, op.upper()))
    return value


def all_reduce_coalesced() -> list[torch.Tensor]:
    values = [_mine(2), _mine(3, 2)]
    with dist._coalescing_manager():
        for value in values:
            dist.all_reduce(value)
    return values


def reduce() -> torch.Tensor | None:
    value = _mine(2, 2)
    dist.reduce(value, dst=1)
    return value if dist.get_rank() == 1 else None


def broadcast() -> torch.Tensor:
    value = _mine(4)
    dist.broadcast(value, src=2)
    return value


def all_gather() -> list[torch.Tensor]:
    outputs = [torch.zeros(2, 2) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, _mine(2, 2))
    return outputs


def all_gather_single() -> torch.Tensor:
    output = torch.zeros(dist.get_world_size() * 2, 3)
    dist.all_gather_single(output, _mine(2, 3))
    return output


def gather() -> list[torch.Tensor] | None:
    here = dist.get_rank() == 1
    outputs = [torch.zeros(3) for _ in range(dist.get_world_size())] if here else None
    dist.gather(_mine(3), outputs, dst=1)
    return outputs


def scatter() -> torch.Tensor:
    output = torch.zeros(2)
    parts = list(_mine(dist.get_world_size(), 2).unbind()) if dist.get_rank() == 2 else None
    dist.scatter(output, parts, src=2)
    return output


def reduce_scatter() -> torch.Tensor:
    output = torch.zeros(2)
    dist.reduce_scatter(output, list(_mine(dist.get_world_size(), 2).unbind()))
    return output


def reduce_scatter_single() -> torch.Tensor:
    output = torch.zeros(2, 3)
    dist.reduce_scatter_single(output, _mine(dist.get_world_size() * 2, 3))
    return output


def all_to_all_single() -> torch.Tensor:
    output = torch.zeros(dist.get_world_size(), 2)
    dist.all_to_all_single(output, _mine(dist.get_world_size(), 2))
    return output


def all_to_all_uneven() -> torch.Tensor:
    """Rank r sends r rows to each; rank 0 sends nothing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(sum(range(size)), 2)
    dist.all_to_all_single(output, _mine(rank * size, 2), list(range(size)), [rank] * size)
    return output


def all_to_all_nothing_but_the_first() -> torch.Tensor:
    """Only rank 0 has anything to send."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = size if rank == 0 else 0
    output = torch.zeros(1, 2)
    dist.all_to_all_single(output, _mine(rows, 2), [1] + [0] * (size - 1), [rows // size] * size)
    return output


def send_and_receive() -> torch.Tensor:
    """Once around the ring, every rank sends first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(2)
    sent = dist.isend(_mine(2), (rank + 1) % size)
    dist.recv(output, (rank - 1) % size)
    if sent is not None:
        sent.wait()
    return output


def batched_send_and_receive() -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(2)
    ops = [
        dist.P2POp(dist.isend, _mine(2), (rank + 1) % size),
        dist.P2POp(dist.irecv, output, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return output


def receive_from_any() -> list[float] | None:
    """Rank 0 receives from any rank; returns the sources and values."""
    if dist.get_rank():
        dist.send(_mine(1), 0)
        return None
    heard = []
    for _ in range(dist.get_world_size() - 1):
        output = torch.zeros(1)
        source = dist.recv(output)
        heard.append((source, output.item()))
    return sorted(heard)


def tagged() -> list[float]:
    """Tags are received in reverse order of sending."""
    if dist.get_rank() == 0:
        works = [dist.isend(torch.full((1,), float(tag)), 1, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
        return []
    if dist.get_rank() > 1:
        return []
    first, second = torch.zeros(1), torch.zeros(1)
    dist.recv(second, 0, tag=2)
    dist.recv(first, 0, tag=1)
    return [first.item(), second.item()]


def objects() -> list[object]:
    rank, size = dist.get_rank(), dist.get_world_size()
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    shared: list[object] = [rank]
    dist.broadcast_object_list(shared, src=1)
    return [everything, shared]


def asynchronous() -> list[torch.Tensor]:
    """Two concurrent collectives, waited for in reverse order."""
    first, second = _mine(2), _mine(3)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    for work in reversed(works):
        work.wait()
    return [first, second]


def functional() -> list[torch.Tensor]:
    ops = torch.ops._c10d_functional
    size = dist.get_world_size()
    results = [
        ops.all_reduce(_mine(2), "sum", "0"),
        ops.all_gather_into_tensor(_mine(2), size, "0"),
        ops.reduce_scatter_tensor(_mine(size * 2), "sum", size, "0"),
        ops.all_to_all_single(_mine(size), [1] * size, [1] * size, "0"),
        ops.broadcast(_mine(2), 1, "0"),
        *ops.all_reduce_coalesced([_mine(1), _mine(2)], "max", "0"),
        *ops.all_gather_into_tensor_coalesced([_mine(1), _mine(2)], size, "0"),
        *ops.reduce_scatter_tensor_coalesced([_mine(size)], "sum", size, "0"),
    ]
    return [ops.wait_tensor(result) for result in results]


CALLS = {
    **{f"all_reduce_{op}": (all_reduce, op) for op in ("sum", "product", "min", "max")},
    **{f"all_reduce_{op}": (all_reduce, op) for op in ("band", "bor", "bxor")},
    **{
        call.__name__: (call,)
        for call in (
            all_reduce_coalesced, reduce, broadcast, all_gather, all_gather_single, gather,
            scatter, reduce_scatter, reduce_scatter_single, all_to_all_single, all_to_all_uneven,
            all_to_all_nothing_but_the_first, send_and_receive, batched_send_and_receive,
            receive_from_any, tagged, objects, asynchronous, functional,
        )
    },
}  # fmt: skip


def call_all() -> dict[str, object]:
    """Results of all of them on this rank."""
    return {name: call(*args) for name, (call, *args) in CALLS.items()}
