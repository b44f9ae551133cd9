import torch
import torch.distributed as dist
from torch import nn


class MLP(nn.Module):
    def __init__(self, config, features=6):
        super().__init__()
        sizes = [features] + [config.hidden] * config.layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(sizes[-1], 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.out(x)


def check_same_shape(model):
    """All ranks must have built the same model."""
    count = torch.tensor([sum(p.numel() for p in model.parameters())])
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    if len({int(c) for c in counts}) != 1:
        raise RuntimeError(f"models differ: {counts}")
