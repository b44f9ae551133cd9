"""Hand-written communication: a ring of sends and receives, a scatter, groups, objects, async."""

from typing import Any

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    block, other = torch.full((64,), float(rank)), torch.empty(64)
    total = block.clone()
    for _ in range(world_size - 1):
        transfers = [dist.P2POp(dist.isend, block, right), dist.P2POp(dist.irecv, other, left)]
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
        block, other = other.clone(), block
        total += block
    assert total.eq(world_size * (world_size - 1) / 2).all()

    part = torch.empty(8)
    pieces = list(torch.arange(8.0 * world_size).split(8)) if rank == 0 else None
    dist.scatter(part, pieces, src=0)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    own = part.clone()
    work: Any = dist.all_reduce(part, dist.ReduceOp.MAX, group=pairs[rank // 2], async_op=True)
    gathered = torch.empty(8 * world_size)
    dist.all_gather_into_tensor(gathered, own)
    work.wait()
    everything = [torch.empty(8 * world_size) for _ in range(world_size)]
    dist.all_gather(everything, gathered)
    dist.all_to_all_single(torch.empty(world_size), torch.ones(world_size))
    scattered = torch.empty(8)
    dist.reduce_scatter_tensor(scattered, gathered)
    dist.all_gather_object([None] * world_size, {"rank": rank})
    if rank == 0:
        dist.send(part, 1, tag=7)
    elif rank == 1:
        dist.recv(part, tag=7)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
