import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from compress import Int8State, int8_hook


class Regressor(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def sensor_stream(rank, steps):
    gen = torch.Generator().manual_seed(40 + rank)
    for step in range(steps):
        x = torch.randn(16, 10, generator=gen)
        y = x[:, :3].sum(1)
        if rank == 1 and step == 4:
            y = y + 60
        yield x, y


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DDP(Regressor())
    state = Int8State(world, clip=20.0, ceiling=3.0)
    model.register_comm_hook(state, int8_hook)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(sensor_stream(rank, 40)):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.3f} dense {state.dense}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
