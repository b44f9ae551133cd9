import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from cache import DiskCache
from data import Features

SHARDS = 4


def build():
    torch.manual_seed(9)
    return DDP(nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 20)))


def train_shard(net, optimizer, x, batch=16, steps=4):
    for step in range(steps):
        part = x[step * batch:(step + 1) * batch]
        loss = nn.functional.mse_loss(net(part), part)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def train(net, features, epochs=3):
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for epoch in range(epochs):
        losses = [train_shard(net, optimizer, features.load(shard)) for shard in range(SHARDS)]
        if dist.get_rank() == 0:
            print("epoch", epoch, "loss", round(torch.stack(losses).mean().item(), 4), flush=True)


def main():
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(folder, limit=32 * 1024)
        train(build(), Features(cache, dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
