import torch
import torch.distributed as dist


class ImplicitHeat:
    """(I - k * laplace) on a rod that is split over the ranks."""

    def __init__(self, conductivity):
        self.k = conductivity
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def __call__(self, u):
        edges = torch.stack([u[0], u[-1]])
        table = [torch.empty_like(edges) for _ in range(self.world)]
        dist.all_gather(table, edges)
        left = table[self.rank - 1][1:] if self.rank > 0 else u.new_zeros(1)
        right = table[self.rank + 1][:1] if self.rank + 1 < self.world else u.new_zeros(1)
        padded = torch.cat([left, u, right])
        return u - self.k * (padded[2:] - 2 * u + padded[:-2])
