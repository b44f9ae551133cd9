import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Encoder(nn.Module):
    """Residual blocks with LayerDrop (Fan et al. 2020)."""

    def __init__(self, dim=16, widths=(32, 32, 32, 32), drop=0.2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, w) for w in widths)
        self.head = nn.Linear(dim, 4)
        self.drop = drop

    def forward(self, x):
        for block in self.blocks:
            if self.training and torch.rand(()) < self.drop:
                continue
            x = block(x)
        return self.head(x)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
