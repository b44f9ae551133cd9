import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from finder import LRFinder


def stream(rank, seed):
    g = torch.Generator().manual_seed(seed * 100 + rank)
    n = 0
    while True:
        x = torch.randn(16, 6, generator=g)
        if rank == 0 and n == 13:
            x[3, 2] = 3e38               # a sensor that overflowed
        n += 1
        yield x, x[:, :1] * 2 - 0.5


def agree(value):
    t = torch.tensor([value])
    dist.broadcast(t, src=0)
    return t.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    initial = copy.deepcopy(model.state_dict())
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    lr = agree(LRFinder(ddp, optimizer).find(stream(rank, 1)))
    if rank == 0:
        print("learning rate", lr, flush=True)
    model.load_state_dict(initial)
    for group in optimizer.param_groups:
        group["lr"] = lr
    for step, (x, y) in zip(range(20), stream(rank, 2)):
        loss = F.mse_loss(ddp(x), y).clamp(max=10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
