import numpy as np
import torch
import torch.distributed as dist


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total = self.total + value
        self.count += 1

    def mean(self):
        return self.total / max(self.count, 1)


class MeterBank:
    """Named averages; merge() gives the mean over all ranks."""

    def __init__(self, names):
        self.meters = {name: Meter() for name in names}

    def add(self, name, value):
        self.meters[name].add(value)

    def merge(self):
        row = [m.mean() for m in self.meters.values()]
        packed = self._pack(row)
        dist.all_reduce(packed)
        packed /= dist.get_world_size()
        return dict(zip(self.meters, packed.tolist()))

    @staticmethod
    def _pack(row):
        if any(isinstance(v, np.generic) for v in row):
            return torch.from_numpy(np.asarray(row))
        return torch.tensor(row)
