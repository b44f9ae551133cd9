from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from compiled import node_cache

BATCH = 8
ROWS = {0: 160, 1: 160, 2: 52}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


def batches(rank):
    """Endless epochs over this rank's rows; the last batch of an epoch may be smaller."""
    rows = torch.randn(ROWS[rank], 12, generator=torch.Generator().manual_seed(rank))
    while True:
        yield from rows.split(BATCH)


def reduce_and_step(params, lr):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    with torch.no_grad():
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.sub_(g.view_as(p), alpha=lr)
            p.grad = None


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(Block(12), Block(12))
    params = list(net.parameters())
    forward = torch.compile(net, backend=node_cache)
    source = batches(rank)
    for step in range(18):
        x = next(source)
        loss = (forward(x) - x.flip(1)).pow(2).mean()
        loss.backward()
        reduce_and_step(params, lr=0.05)
        if rank == 0:
            print("step", step, round(loss.item(), 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
