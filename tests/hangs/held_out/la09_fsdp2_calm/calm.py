import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

PAD = 0


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        context = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return x + self.down(torch.relu(self.up(self.norm(context))))


class CalmLm(nn.Module):
    """In evaluation, later blocks are left out once the hidden states no longer change."""

    def __init__(self, vocab, dim=48, depth=5, tolerance=1e-3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab, bias=False)
        self.tolerance = tolerance
        self.used = []

    def settled(self, before, after):
        return bool((after - before).abs().max() < self.tolerance)

    def forward(self, ids):
        x = self.embed(ids)
        for depth, block in enumerate(self.blocks):
            before, x = x, block(x)
            if not self.training and self.settled(before, x):
                break
        self.used.append(depth + 1)
        return self.head(x)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
