import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feeder import Feeder


def build():
    torch.manual_seed(0)
    return DDP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))


def run_epoch(model, optimizer, feeder):
    total, steps = 0.0, 0
    for x, y in feeder:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        steps += 1
    return total / max(steps, 1)


def evaluate(model):
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        error = nn.functional.mse_loss(model.module(x), x.sum(1, keepdim=True))
    dist.all_reduce(error)
    return error.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loss = run_epoch(model, optimizer, Feeder(rank, batch_size=8))
        error = evaluate(model)
        if rank == 0:
            print(f"epoch {epoch}: train {loss:.4f}, valid {error:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
