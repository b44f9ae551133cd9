import torch
import torch.distributed as dist


def any_rank(flag):
    t = torch.tensor([int(bool(flag))])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return bool(t.item())


class Plateau:
    def __init__(self, patience):
        self.patience = patience
        self.reset()

    def reset(self):
        self.best, self.bad = float("inf"), 0

    def stuck(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience
