"""Classifier with a patience rule on a validation metric."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from monitor import Monitor
from settings import load_settings


def make_data(rank, n=64):
    g = torch.Generator().manual_seed(40 + rank)
    x = torch.randn(n, 10, generator=g)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        out = model.module(x)
    model.train()
    return nn.functional.cross_entropy(out, y).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cfg = load_settings(node=rank // 2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    x, y = make_data(rank)
    vx, vy = make_data(rank + 100)
    watch = Monitor(cfg["mode"], cfg["patience"])
    for epoch in range(cfg["epochs"]):
        for i in range(0, len(x), 16):
            loss = nn.functional.cross_entropy(model(x[i:i + 16]), y[i:i + 16])
            opt.zero_grad()
            loss.backward()
            opt.step()
        value = watch.combine(validate(model, vx, vy))
        if rank == 0:
            print(f"epoch {epoch} val {value:.4f}", flush=True)
        if watch.exhausted(value):
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
