"""Metrics are collected locally and reduced together."""
import torch
import torch.distributed as dist


class Metrics:
    def __init__(self):
        self.values = {}

    def add(self, name, value):
        total, count = self.values.get(name, (0.0, 0))
        self.values[name] = (total + float(value), count + 1)

    def note(self, name, item):
        self.values.setdefault(name, []).append(item)

    def reduce(self):
        result = {}
        for name, value in self.values.items():
            if isinstance(value, list):
                parts = [None] * dist.get_world_size()
                dist.all_gather_object(parts, value)
                result[name] = sum(parts, [])
            else:
                pair = torch.tensor(value, dtype=torch.float64)
                dist.all_reduce(pair)
                result[name] = (pair[0] / pair[1]).item()
        self.values = {}
        return result
