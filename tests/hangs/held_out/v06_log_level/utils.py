import logging
import sys

import torch
import torch.distributed as dist


def setup_logging(rank):
    logger = logging.getLogger("train")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(f"[rank {rank}] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    return logger


class Meter:
    """Running mean of a value over all ranks."""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.total = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    def global_mean(self):
        mine = torch.tensor([self.total, float(self.count)])
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        total, count = torch.stack(parts).sum(0).tolist()
        return total / max(count, 1)

    def __str__(self):
        return f"{self.name} {self.global_mean():.4f}"


class MeterGroup:
    def __init__(self, *names):
        self.meters = {name: Meter(name) for name in names}

    def __getitem__(self, name):
        return self.meters[name]

    def __str__(self):
        return ", ".join(str(m) for m in self.meters.values())

    def reset(self):
        for m in self.meters.values():
            m.reset()
