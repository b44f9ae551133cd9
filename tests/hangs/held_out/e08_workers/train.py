"""DataLoader workers, per-class statistics in any local order, a subprocess and a monitored barrier."""
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset):
    def __len__(self):
        return 101

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(11, generator=g), i % 5


def merge(stats):
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, list(stats))
    for name in sorted(set().union(*names)):
        t = stats.get(name, torch.zeros(2))
        dist.all_reduce(t)
        stats[name] = t


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Linear(11, 5))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = DistributedSampler(Rows(), world, rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        stats = {}
        for x, y in DataLoader(Rows(), batch_size=8, sampler=sampler, num_workers=1):
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            for ok, c in zip((out.argmax(1) == y).tolist(), y.tolist()):
                stats[c] = stats.get(c, torch.zeros(2)) + torch.tensor([float(ok), 1.0])
        merge(stats)
        if rank == 0:
            out = subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(3); print('report sent')"],
                                 capture_output=True, text=True).stdout
            print(epoch, out.strip(), {c: round((t[0] / t[1]).item(), 3) for c, t in sorted(stats.items())}, flush=True)
        dist.monitored_barrier(timeout=timedelta(minutes=30))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
