"""Uneven inputs, handled by DDP's join."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import loader


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 1))


def epoch(model, opt, batches):
    n = 0
    with model.join():
        for x, y in batches:
            loss = nn.functional.l1_loss(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
    return n


def report(number, n):
    counts = torch.zeros(dist.get_world_size(), dtype=torch.long)
    counts[dist.get_rank()] = n
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        print("epoch", number, "batches", counts.tolist(), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    model = DDP(build())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = loader(dist.get_rank())
    for number in range(3):
        report(number, epoch(model, opt, batches))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
