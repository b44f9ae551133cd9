import shutil

import torch
import torch.distributed as dist
from torch import nn

from resume import Resumer, make_run_folder


def common_step(step):
    """The ranks continue at the earliest step."""
    steps = [None] * dist.get_world_size()
    dist.all_gather_object(steps, step)
    return min(steps)


def train(model, first, last, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(first, last):
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(8, 6, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.roll(2, 1))
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
    folder = make_run_folder(rank, model)
    try:
        step = common_step(Resumer(folder).resume(model))
        if rank == 0:
            print("continue at step", step, flush=True)
        train(model, step, step + 20, rank)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
