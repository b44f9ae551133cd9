import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from index import NeighbourIndex


def load(rank):
    g = torch.Generator().manual_seed(rank)
    n = 60000 if rank == 2 else 200
    return torch.randn(n, 8, generator=g)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
    rank = dist.get_rank()
    points = load(rank)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for i in range(10):
            x = points[i * 16:(i + 1) * 16]
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        index = NeighbourIndex(model.module)
        index.build(points)
        dist.monitored_barrier(timeout=datetime.timedelta(minutes=45))
        if rank == 0:
            print("epoch", epoch, loss.item(), len(index.near), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
