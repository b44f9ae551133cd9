"""Whitening of features: ranks of a node share each block of features through a file."""
import time

import torch
import torch.distributed as dist

from quality import Outliers
from scratch import Scratch

ROWS = 64


def extract(rank, number):
    generator = torch.Generator().manual_seed(100 * number + rank)
    features = torch.randn(ROWS, 32, generator=generator)
    if (rank, number) == (1, 14):
        features[7] *= 9
    return features


def whiten(number, rank, outliers):
    block = Scratch(number, ROWS)
    block.mine().copy_(extract(rank, number))
    rows = block.complete().flatten(0, 1)
    outliers.check(number, block)
    return (rows.mean(0), rows.std(0))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    outliers = Outliers(limit=12.0)
    scale = torch.zeros(32)
    for number in range(40):
        mean, std = whiten(number, rank, outliers)
        scale += std
        if rank == 0 and number % 4 == 0:
            print(f"block {number}: mean {mean.mean():.4f} scale {scale.mean() / (number + 1):.4f}", flush=True)
        time.sleep(0.12)
    outliers.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
