"""SWA training; snapshots are averaged and written by a background thread."""
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from snapshots import SnapshotWriter


def fit(model, opt, writer, rank, steps):
    g = torch.Generator().manual_seed(rank)
    for step in range(1, steps + 1):
        x = torch.randn(32, 10, generator=g)
        loss = (model(x) - x.prod(1, keepdim=True).tanh()).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        writer.note(step, loss.item())
        if step % 4 == 0:
            writer.submit(step, copy.deepcopy(model.module.state_dict()))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    writer = SnapshotWriter(rank, world=dist.get_world_size(), keep=3)
    fit(model, opt, writer, rank, steps=48)
    writer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
