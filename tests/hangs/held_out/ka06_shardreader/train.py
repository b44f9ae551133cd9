from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from reader import ShardReader

PER_RANK = 4


def assignment(catalog, epoch, rank, world):
    """Shards of the epoch in blocks of consecutive names, as they lie on the disks."""
    start = (epoch * world + rank) * PER_RANK
    return catalog[start:start + PER_RANK]


def rounds_of(names):
    count = torch.tensor([len(names)])
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    return int(count)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    catalog = [f"shard-{i:05d}" for i in range(21)]
    net = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    reader = ShardReader()
    for epoch in range(3):
        names = assignment(catalog, epoch, rank, world)
        rounds = rounds_of(names)
        total = 0.0
        for number, rows in enumerate(islice(reader.shards(names), rounds)):
            loss = nn.functional.mse_loss(net(rows), rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch}: {rounds} rounds, loss {total / max(rounds, 1):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
