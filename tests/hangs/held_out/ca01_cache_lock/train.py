import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from cache import DiskCache
from data import Scans


def build_loader(folder):
    dataset = Scans(96, DiskCache(os.path.join(folder, "scans")))
    sampler = DistributedSampler(dataset, shuffle=False)
    return DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)


def train_epoch(model, optimizer, loader, criterion):
    total = torch.zeros(1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(loader)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    with tempfile.TemporaryDirectory() as folder:
        loader = build_loader(folder)
        for epoch in range(3):
            mean = train_epoch(model, optimizer, loader, criterion)
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
