"""Count runs of close variants per region of a genome."""
import random
import time

import torch
import torch.distributed as dist

from spill import sort_variants

DENSE = {(0, 7): 26_000, (1, 11): 14_000, (2, 3): 18_000}


def load(rank, region):
    source = random.Random(1000 * region + rank)
    count = DENSE.get((rank, region), 4_000)
    return [(f"chr{rank + 1}", source.randrange(10_000_000)) for _ in range(count)]


def close_pairs(rows, gap=100):
    return sum(b[1] - a[1] < gap for a, b in zip(rows, rows[1:]))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for region in range(24):
        rows = sort_variants(load(rank, region), rank)
        local = torch.tensor([len(rows), close_pairs(rows)])
        dist.reduce(local, dst=0)
        if rank == 0:
            print(f"region {region}: {local.tolist()}", flush=True)
        peak = torch.tensor([len(rows)])
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
