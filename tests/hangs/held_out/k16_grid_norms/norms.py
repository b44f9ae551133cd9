import torch
import torch.distributed as dist


class NormTracker:
    """Squared norms of weight and bias gradients: weights over the row, biases over the column."""

    def __init__(self, grid, loud):
        self.loud = loud
        self.where = {"weight": grid.row, "bias": grid.col}

    def reduce(self, value, group):
        t = value.clone()
        dist.all_reduce(t, group=group)
        return t.sqrt().item()

    def measure(self, net):
        local = {n: p.grad.square().sum() for n, p in net.named_parameters()}
        ranked = sorted(local, reverse=local["bias"].item() < self.loud)
        return {n: self.reduce(local[n], self.where[n]) for n in ranked}
