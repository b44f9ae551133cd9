"""Local findings (bad batches, a plateau, a signal) that become decisions of all ranks."""
import os
import signal

import torch
import torch.distributed as dist
from torch import nn

from consensus import any_rank, Plateau


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    flagged = []
    signal.signal(signal.SIGUSR1, lambda *a: flagged.append(1))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = Plateau(patience=6)
    g = torch.Generator().manual_seed(rank)
    for step in range(400):
        x = torch.randn(8, 6, generator=g)
        if rank == 1 and step % 7 == 3:
            x[0, 0] = float("nan")
        loss = (model(x) - x[:, :1]).square().mean()
        if any_rank(not loss.isfinite()):
            continue
        opt.zero_grad()
        loss.backward()
        average(model)
        opt.step()
        if any_rank(plateau.stuck(loss.item())):
            for group in opt.param_groups:
                group["lr"] *= 0.5
            plateau.reset()
        if rank == 2 and step == 120:
            os.kill(os.getpid(), signal.SIGUSR1)
        if any_rank(bool(flagged)):
            break
    dist.barrier()
    print(f"rank {rank} ended at step {step} lr {opt.param_groups[0]['lr']:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
