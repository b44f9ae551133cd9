"""All cores are busy with preprocessing while the ranks train."""
import multiprocessing as mp
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import prep


class Feed:
    def __init__(self, pool, rank, batch=8):
        self.pool, self.rank, self.batch = pool, rank, batch

    def __call__(self, step):
        n = self.batch * (3 if (step + self.rank) % 4 == 0 else 1)
        rows = self.pool.map(prep.render, prep.seeds(self.rank, step, n), chunksize=2)
        return torch.tensor(rows)


def train_step(model, params, x):
    loss = (model(x) - x.cumsum(1)).pow(2).mean()
    grads = torch.autograd.grad(loss, params)
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    with torch.no_grad():
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p -= 0.01 * g.view_as(p)
    return loss.item()


def main():
    ctx = mp.get_context("fork")
    with ctx.Pool(os.cpu_count()) as pool:
        dist.init_process_group("gloo", timeout=timedelta(seconds=600))
        rank = dist.get_rank()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))
        params = list(model.parameters())
        feed = Feed(pool, rank)
        for step in range(8):
            loss = train_step(model, params, feed(step))
            if rank == 0:
                print(step, round(loss, 4), flush=True)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
