import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import Fetcher, ShardDataset

SHARDS = list(range(11))
MAX_STEPS = 12


def my_shards(rank, world):
    return SHARDS[rank::world]


def build():
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def train(loader, net, opt):
    total = torch.zeros(())
    stream = iter(loader)
    for step in range(MAX_STEPS):
        x, y = next(stream)
        loss = nn.functional.mse_loss(net(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    return total / MAX_STEPS


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    with tempfile.TemporaryDirectory() as folder:
        shards = my_shards(rank, world)
        Fetcher(folder, shards).start()
        loader = DataLoader(ShardDataset(folder, shards), batch_size=8, num_workers=1)
        net, opt = build()
        mean = train(loader, net, opt)
        dist.all_reduce(mean)
        if rank == 0:
            print("mean loss", mean.item() / world, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
