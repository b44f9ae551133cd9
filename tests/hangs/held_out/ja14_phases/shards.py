import sys
import zlib

import torch


def assigned(names, rank, world):
    mine = sorted(names)[rank::world]
    if not mine:
        print(f"rank {rank}: no shards left, finished", flush=True)
        sys.exit()
    return mine


def read(name, rows=64):
    """The rows of a shard, here drawn by its name."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.randn(rows, 5, generator=generator)
    return x, x.abs().sum(1, keepdim=True)


def batches(names, passes, size=16):
    for number in range(passes):
        name = names[number % len(names)]
        x, y = read(name)
        yield from zip(x.split(size), y.split(size))
