from functools import lru_cache

import torch
import torch.distributed as dist


@lru_cache(maxsize=None)
def cell_weight(cells):
    """Weight of a cell in global integrals, for the present number of cells."""
    total = torch.tensor([float(cells)])
    dist.all_reduce(total)
    return 1.0 / total.item()


def l2(field, weight):
    mine = (field.square().sum() * weight).reshape(1)
    parts = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts).sum().sqrt().item()
