from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from checkpoint import Checkpointer


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def agree(flag):
    votes = torch.tensor([int(flag)])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    checkpointer = Checkpointer(rank)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, 41):
        x = torch.randn(16, 4, generator=generator)
        if rank == 1 and step == 9:
            x[0] = float("nan")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if agree(not loss.isfinite()):
            continue                 # all ranks leave the batch out
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        if step % 20 == 0:
            saved = checkpointer.save(model)
            if rank == 0:
                print(f"step {step}: {loss.item():.4f}, saved {saved}", flush=True)
    dist.monitored_barrier(timeout=timedelta(minutes=10))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
