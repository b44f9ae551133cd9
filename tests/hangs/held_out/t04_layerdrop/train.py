import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from model import Encoder, shard


def seed_everything(seed):
    torch.manual_seed(seed)


def batch(g):
    x = torch.randn(8, 16, generator=g)
    return x, x[:, :4].argmax(1)


def train_step(model, opt, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed_everything(17)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = shard(Encoder(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    seed_everything(17 + rank)
    model.train()
    for step in range(40):
        x, y = batch(g)
        loss = train_step(model, opt, x, y)
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
