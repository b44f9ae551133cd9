import torch
import torch.distributed as dist


class Meter:
    """Means over the steps since the last report, by name."""

    def __init__(self):
        self.sums = {}

    def add(self, name, value, count=1):
        total, seen = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + value, seen + count)

    def reduce(self):
        means = {}
        for name, (total, seen) in sorted(self.sums.items()):
            pair = torch.tensor([total, float(seen)], dtype=torch.float64)
            dist.all_reduce(pair)
            means[name] = (pair[0] / pair[1]).item()
        self.sums.clear()
        return means
