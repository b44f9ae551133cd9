"""Embedding table: only rows that some rank has used are reduced."""
import torch
import torch.distributed as dist
from torch import nn

from gossip import Butterfly

ROWS, DIM = 64, 6


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, DIM)
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, items):
        return (self.table(items) * self.weight).sum(-1)


def clicks(step, rank):
    gen = torch.Generator().manual_seed(31 * step + rank)
    items = torch.randint(16 * rank, 16 * rank + 16, (10,), generator=gen)
    if step == 3 and rank == 2:
        items = torch.arange(32, 64)
    return items, torch.rand(len(items), generator=gen)


def reduce_rows(model, items, butterfly):
    used = torch.zeros(ROWS, dtype=torch.uint8)
    used[items] = 1
    rows = butterfly.union(used).bool()
    dist.all_reduce(model.weight.grad)
    model.weight.grad /= butterfly.world
    part = model.table.weight.grad[rows].contiguous()
    dist.all_reduce(part)
    model.table.weight.grad[rows] = part / butterfly.world
    return int(rows.sum())


def main():
    dist.init_process_group("gloo")
    butterfly = Butterfly()
    torch.manual_seed(4)
    model = Scorer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        items, target = clicks(step, butterfly.rank)
        loss = nn.functional.mse_loss(model(items), target)
        optimizer.zero_grad()
        loss.backward()
        rows = reduce_rows(model, items, butterfly)
        optimizer.step()
        if butterfly.rank == 0:
            print(step, loss.item(), rows, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
