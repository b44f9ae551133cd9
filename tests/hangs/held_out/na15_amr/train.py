"""Heat in a bar of blocks with levels of refinement."""
import time

import torch
import torch.distributed as dist

from block import Block


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    block = Block(rank, world)
    for step in range(60):
        block.source(step)
        block.adapt()
        block.exchange()
        block.diffuse()
        hottest = block.heat.max().reshape(1)
        dist.all_reduce(hottest, op=dist.ReduceOp.MAX)
        if rank == 0 and step % 4 == 0:
            print(f"step {step}: levels {block.levels} hottest {hottest.item():.2f}", flush=True)
        time.sleep(0.12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
