"""Training on samples that an asyncio pipeline fetches for each step."""
import asyncio

import torch
import torch.distributed as dist
from torch import nn

from fetch import Fetcher


def allreduce_grads(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in model.parameters():
        p.grad = flat[at:at + p.numel()].view_as(p)
        at += p.numel()


async def fit(rank, steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    fetcher = Fetcher(rank, workers=2)
    for step in range(steps):
        rows = await fetcher.batch(step, size=6)
        x = torch.stack(rows)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        allreduce_grads(model)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    asyncio.run(fit(dist.get_rank(), steps=20))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
