import torch
import torch.distributed as dist


class MetricLog:
    """Values of an epoch; close() brings them to rank 0 so that no epoch is lost."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.values = []
        self.epochs = []

    def add(self, value):
        self.values.append(value)

    def close(self):
        mine = torch.tensor([float(len(self.values)), float(sum(self.values))])
        parts = [torch.empty_like(mine) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(mine, parts, dst=0)
        self.values = []
        if self.rank == 0:
            total = torch.stack(parts).sum(0)
            self.epochs.append(float(total[1] / total[0].clamp(min=1)))
