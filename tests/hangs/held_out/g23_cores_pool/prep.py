"""Preprocessing in a pool of processes, pure Python."""
import math
import random


def render(seed):
    rng = random.Random(seed)
    out = []
    for _ in range(24):
        acc = 0.0
        for k in range(4000):
            acc += math.sin(k * rng.random()) / (k + 1)
        out.append(acc)
    return out


def seeds(rank, step, n):
    return [rank * 10_000 + step * 100 + i for i in range(n)]
