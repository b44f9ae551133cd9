"""A 2 x 2 grid of data and tensor parallel ranks."""
from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class Grid:
    dp: object
    tp: object
    dp_rank: int
    tp_rank: int


def make_grid(tp_size=2):
    world, rank = dist.get_world_size(), dist.get_rank()
    dp_size = world // tp_size
    tp = dp = None
    for d in range(dp_size):
        ranks = list(range(d * tp_size, (d + 1) * tp_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            tp = group
    for t in range(tp_size):
        ranks = list(range(t, world, tp_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            dp = group
    return Grid(dp, tp, rank // tp_size, rank % tp_size)
