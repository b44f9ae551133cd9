import functools

import torch
import torch.distributed as dist


def rank_zero_only(function):
    """Calls the function on rank 0 only."""
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if dist.get_rank() != 0:
            return None
        return function(*args, **kwargs)
    return wrapped


class Meter:
    """A mean over all values of all ranks."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def add(self, value, n=1):
        self.total += value * n
        self.count += n

    def mean(self):
        state = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        parts = [torch.empty_like(state) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, state)
        total, count = torch.stack(parts).sum(0).tolist()
        return total / max(count, 1)
