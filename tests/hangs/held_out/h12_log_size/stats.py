"""Scalars of a step, averaged over ranks in one call."""
import torch
import torch.distributed as dist


class StepStats:
    def __init__(self):
        self.values = {}

    def put(self, name, value):
        self.values[name] = float(value)

    def average(self):
        names = sorted(self.values)
        packed = torch.tensor([self.values[n] for n in names])
        dist.all_reduce(packed, op=dist.ReduceOp.SUM)
        packed /= dist.get_world_size()
        self.values.clear()
        return dict(zip(names, packed.tolist()))
