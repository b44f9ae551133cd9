import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import BestKeeper
from data import Site


def build():
    torch.manual_seed(1)
    return DDP(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)))


@torch.no_grad()
def validate(model, site):
    model.eval()
    x, y = site.validation()
    loss = F.mse_loss(model.module(x), y).item()
    model.train()
    return loss


def train_epoch(model, optimizer, site):
    for x, y in site.train():
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    site = Site(rank)
    keeper = BestKeeper(model)
    for epoch in range(5):
        train_epoch(model, optimizer, site)
        value = validate(model, site)
        improved = keeper.update(epoch, value)
        print(f"rank {rank} epoch {epoch}: {value:.3f} {'*' if improved else ''}", flush=True)
    keeper.remove()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
