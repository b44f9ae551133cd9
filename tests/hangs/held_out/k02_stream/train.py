import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import Shards


def build():
    torch.manual_seed(1)
    return DDP(nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1)))


def train_epoch(model, opt, loader):
    seen, total = 0, 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        seen += len(x)
        total += loss.item() * len(x)
    return seen, total


def mean_loss(seen, total):
    stats = torch.tensor([seen, total], dtype=torch.float64)
    dist.reduce(stats, dst=0)
    return (stats[1] / stats[0]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Shards(rank, world), batch_size=8, num_workers=1, drop_last=True)
    for epoch in range(2):
        seen, total = train_epoch(model, opt, loader)
        value = mean_loss(seen, total)
        if rank == 0:
            print(f"epoch {epoch} loss {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
