"""Rank 3 prepares data for the others and ends long before them."""
from datetime import timedelta
import time

import torch
import torch.distributed as dist
from torch import nn

SHARDS, ROWS, DIM = 6, 40, 5


def serve(world):
    """Sends all shards, round-robin, then is done."""
    for shard in range(SHARDS):
        g = torch.Generator().manual_seed(shard)
        rows = torch.randn(ROWS, DIM, generator=g)
        for dst in range(world - 1):
            dist.send(rows[dst::world - 1].contiguous(), dst=dst, tag=shard)


def receive(rank, world):
    mine = []
    for shard in range(SHARDS):
        n = len(range(rank, ROWS, world - 1))
        rows = torch.empty(n, DIM)
        dist.recv(rows, src=world - 1, tag=shard)
        mine.append(rows)
    return torch.cat(mine)


def fit(rows, group, epochs):
    torch.manual_seed(0)
    model = nn.Linear(DIM, 1)
    for epoch in range(epochs):
        loss = (model(rows) - rows[:, :1]).abs().mean()
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            p.data.sub_(p.grad, alpha=0.01)
        time.sleep(0.15)
        if dist.get_rank() == 0 and epoch % 8 == 0:
            print(epoch, round(loss.item(), 4), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    trainers = dist.new_group(list(range(world - 1)))
    if rank == world - 1:
        serve(world)
        print("data server is done", flush=True)
    else:
        fit(receive(rank, world), trainers, epochs=40)
        dist.barrier(group=trainers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
