import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from export import Exporter


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 160), nn.ReLU(), nn.Linear(160, 32))


def epoch(model, opt, g):
    for _ in range(12):
        x = torch.randn(16, 32, generator=g)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(build())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    exporter = Exporter() if rank == 0 else None
    for n in range(3):
        loss = epoch(model, opt, g)
        if exporter:
            path = exporter.write(model.module, f"e{n}")
            rows = exporter.verify(path)
            print("epoch", n, loss, rows, flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
