"""Uneven inputs with Join; the ranks then meet for the metrics."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def loader(rank, epoch):
    n = 40 + 24 * ((rank + epoch) % 3)
    g = torch.Generator().manual_seed(10 * epoch + rank)
    x = torch.randn(n, 12, generator=g)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        stats = torch.zeros(2)
        with Join([model]):
            for x, y in loader(rank, epoch):
                loss = (model(x) - y).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                time.sleep(0.15)
                stats += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} batches {int(stats[1])} loss {stats[0] / stats[1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
