import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import ShardReader

# records per shard, by rank, as in the manifest
MANIFEST = {
    0: [240, 320, 280, 240],
    1: [320, 240, 3200, 280],
    2: [280, 320, 240, 320],
}


def build():
    torch.manual_seed(6)
    return DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))


def batches(rows, size, limit):
    data = torch.tensor(rows)
    for at in range(0, size * limit, size):
        yield data[at:at + size]


def train_shard(net, optimizer, rows):
    last = None
    for x in batches(rows, size=16, limit=15):
        loss = nn.functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.detach()
    return last


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    reader = ShardReader(rank, MANIFEST[rank])
    for index in range(len(MANIFEST[rank])):
        rows = reader.read(index)
        loss = train_shard(net, optimizer, rows)
        dist.all_reduce(loss)
        if rank == 0:
            print("shard", index, "loss", round(loss.item() / world, 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
