"""Trains the residual net with fully_shard over all ranks."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from data import Blobs
from model import Net

STEPS = 20


def build(mesh):
    torch.manual_seed(0)
    net = Net()
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def train_step(net, optimizer, x, y, generator):
    out = net(x, generator)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def report(step, loss, world):
    total = loss.clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"step {step} loss {total.item() / world:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (world,))
    net = build(mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(int(os.environ.get("SEED", "7")) + rank)
    for step, (x, y) in zip(range(STEPS), Blobs(rank)):
        loss = train_step(net, optimizer, x, y, generator)
        report(step, loss, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
