"""Threads in pure Python and in numpy compete with the training loop for the cores."""
import os
import threading
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist


class Spinner(threading.Thread):
    """Holds Python's lock most of the time."""

    def __init__(self):
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.primes = 0

    def run(self):
        n = 3
        while not self.stop.is_set():
            if all(n % d for d in range(3, int(n**0.5) + 1, 2)):
                self.primes += 1
            n += 2


class Cruncher(threading.Thread):
    """Releases the lock while it sorts and multiplies."""

    def __init__(self, seed):
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.rng = np.random.default_rng(seed)
        self.rounds = 0

    def run(self):
        while not self.stop.is_set():
            a = self.rng.standard_normal((300, 300))
            np.sort(a @ a, axis=1)
            self.rounds += 1


def kmeans_step(x, centers):
    nearest = torch.cdist(x, centers).argmin(1)
    sums = torch.zeros_like(centers).index_add_(0, nearest, x)
    counts = torch.bincount(nearest, minlength=len(centers)).float()
    dist.all_reduce(sums)
    dist.all_reduce(counts)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centers)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    x = torch.randn(4000, 4, generator=torch.Generator().manual_seed(rank))
    centers = x[:5].clone()
    dist.broadcast(centers, src=0)
    helpers = [Spinner()] + [Cruncher(i) for i in range(os.cpu_count())]
    for h in helpers:
        h.start()
    for i in range(25):
        new = kmeans_step(x, centers)
        moved = (new - centers).norm().item()
        centers = new
        if rank == 0 and i % 5 == 0:
            print(i, round(moved, 5), flush=True)
    for h in helpers:
        h.stop.set()
        h.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
