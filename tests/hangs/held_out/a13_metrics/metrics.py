from collections import defaultdict

import torch
import torch.distributed as dist


class PerClass:
    """Hits and counts of each class that occurred in the evaluation."""

    def __init__(self, names):
        self.names = names
        self.reset()

    def reset(self):
        self.hits = defaultdict(int)
        self.count = defaultdict(int)

    def update(self, pred, label):
        for p, t in zip(pred.tolist(), label.tolist()):
            self.count[self.names[t]] += 1
            self.hits[self.names[t]] += int(p == t)

    def compute(self):
        result = {}
        for name in sorted(self.count):
            pair = torch.tensor([self.hits[name], self.count[name]], dtype=torch.float64)
            dist.all_reduce(pair)
            result[name] = (pair[0] / pair[1]).item()
        return result


class Confusion:
    def __init__(self, names):
        self.names = names
        self.table = torch.zeros(len(names), len(names), dtype=torch.long)

    def reset(self):
        self.table.zero_()

    def update(self, pred, label):
        index = label * len(self.names) + pred
        self.table += torch.bincount(index, minlength=self.table.numel()).view_as(self.table)

    def compute(self):
        total = [torch.zeros_like(self.table) for _ in range(dist.get_world_size())]
        dist.all_gather(total, self.table)
        total = torch.stack(total).sum(0)
        return {"accuracy": (total.diag().sum() / total.sum()).item()}


class MetricList:
    def __init__(self, *metrics):
        self.metrics = metrics

    def reset(self):
        for m in self.metrics:
            m.reset()

    def update(self, pred, label):
        for m in self.metrics:
            m.update(pred, label)

    def compute(self):
        out = {}
        for m in self.metrics:
            out.update(m.compute())
        return out
