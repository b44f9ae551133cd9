"""Early stopping that all ranks agree on."""
import torch
import torch.distributed as dist


class AgreedStopper:
    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.bad = 0

    def update(self, value):
        if value < self.best - 1e-3:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        want = torch.tensor(int(self.bad >= self.patience))
        dist.all_reduce(want, op=dist.ReduceOp.MAX)
        return bool(want.item())
