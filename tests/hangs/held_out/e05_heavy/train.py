"""Two ranks with uneven, slow steps: one evaluates a much larger number of candidates in pure Python."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def candidates(n, seed):
    """A slow scoring rule of integers."""
    total, value = 0, seed
    for _ in range(n):
        value = (value * 1103515245 + 12345) % (1 << 31)
        total += value & 15
    return total / n


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    end = 3.6 if rank == 0 else 2.8
    g = torch.Generator().manual_seed(rank)
    for step in range(6):
        t0, score = time.time(), 0.0
        while time.time() - t0 < end:
            score = candidates(50_000, step)
        x = torch.randn(16, 9, generator=g)
        loss = (model(x) - score / 10).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        dist.barrier()
        print(f"rank {rank} step {step} {time.time() - t0:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
