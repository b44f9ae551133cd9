from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset

from loop import AccumulatingLoop


class Clicks(Dataset):
    """Sessions by user; all sessions of a user belong to one rank."""

    def __init__(self, users=40, features=14):
        gen = torch.Generator().manual_seed(24)
        per_user = torch.randint(4, 10, (users,), generator=gen)
        self.user = torch.arange(users).repeat_interleave(per_user)
        self.x = torch.randn(len(self.user), features, generator=gen)
        self.y = (self.x[:, 0] + self.x[:, 1] > 0).float()

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def part(self, rank, world):
        return Subset(self, [i for i, u in enumerate(self.user.tolist()) if u % world == rank])


def report(epoch, losses):
    means = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(means, losses.mean().reshape(1))
    if dist.get_rank() == 0:
        print(f"epoch {epoch}", [round(m.item(), 4) for m in means], flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = DDP(nn.Sequential(nn.Linear(14, 32), nn.SiLU(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    part = Clicks().part(rank, world)
    loop = AccumulatingLoop(model, opt, every=4)
    for epoch in range(5):
        order = torch.Generator().manual_seed(epoch)
        loader = DataLoader(part, batch_size=8, shuffle=True, generator=order)
        report(epoch, loop.epoch(loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
