import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import batches
from prefetch import Prefetcher


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))

    def forward(self, x):
        return self.layers(x)


def train_epoch(model, opt, loader):
    losses = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def average(value):
    t = torch.tensor(value)
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DDP(Head())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        loss = average(train_epoch(model, opt, Prefetcher(batches(rank))))
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
