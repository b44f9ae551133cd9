import torch
import torch.distributed as dist


class Monitor:
    def __init__(self, mode, patience):
        self.mode = mode
        self.patience = patience
        self.best = None
        self.bad = 0

    def combine(self, value):
        """The worst value of all ranks."""
        t = torch.tensor([value])
        dist.all_reduce(t, op=dist.ReduceOp.MAX if self.mode == "min" else dist.ReduceOp.MIN)
        return t.item()

    def _improved(self, value):
        if self.best is None:
            return True
        return value < self.best if self.mode == "min" else value > self.best

    def exhausted(self, value):
        if self._improved(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience
