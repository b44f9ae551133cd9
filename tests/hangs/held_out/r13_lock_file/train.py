from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from features import FeatureCache

PARTS = 4


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train_part(model, optimizer, x):
    for chunk in x.split(8):
        loss = (model(chunk) - chunk.amax(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ELU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    cache = FeatureCache(rank)
    for part in range(PARTS):
        x = cache.load(part)
        # say which rank is missing if the disk of a node is slow
        dist.monitored_barrier(timeout=timedelta(minutes=30))
        loss = train_part(model, optimizer, x)
        if rank == 0:
            print(f"part {part}: {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
