"""Regression with running meters that are merged once per epoch."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from meters import MeterBank


def batches(rank, epoch, n=6):
    g = torch.Generator().manual_seed(100 * epoch + rank)
    for _ in range(n):
        x = torch.randn(8, 12, generator=g)
        yield x, x[:, :3].sum(1, keepdim=True) + 0.01 * torch.randn(8, 1, generator=g)


def gain(source, epoch):
    """Source 1 was recalibrated during its third epoch."""
    return 3.0 if (source, epoch) >= (1, 2) and source < 2 else 1.0


class Task:
    def __init__(self):
        torch.manual_seed(1)
        self.model = DDP(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1)))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self, x, y, meters):
        out = self.model(x)
        loss = ((out - y) ** 2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        err = (out.detach() - y).abs()
        meters.add("loss", loss.item())
        meters.add("mae", err.mean().item())
        hard = err[err > 7.5]
        if hard.numel():
            meters.add("hard", hard.double().numpy().mean())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    task = Task()
    for epoch in range(5):
        meters = MeterBank(["loss", "mae", "hard"])
        for x, y in batches(rank, epoch):
            task.step(x, y * gain(rank, epoch), meters)
        merged = meters.merge()
        if rank == 0:
            print(epoch, {k: round(v, 4) for k, v in merged.items()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
