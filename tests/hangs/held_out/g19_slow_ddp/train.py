from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from slowdisk import SlowDisk

STEPS = 10


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.net(x + 0.1 * torch.randn_like(x))


def step_once(model, opt, x):
    loss = (model(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def log_mean(step, loss):
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(step, round(mean.item() / dist.get_world_size(), 4), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Denoiser())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    disk = SlowDisk(rank, world)
    for step in range(STEPS):
        loss = step_once(model, opt, disk.read(step))
        if step % 3 == 0:
            log_mean(step, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
