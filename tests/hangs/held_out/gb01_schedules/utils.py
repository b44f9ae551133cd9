import torch
import torch.distributed as dist


class BatchSchedule:
    """Doubles the batch each time the learning rate has been lowered."""

    def __init__(self, batch, largest):
        self.batch = batch
        self.largest = largest
        self.lr = None

    def update(self, lr):
        if self.lr is not None and lr < self.lr and self.batch < self.largest:
            self.batch *= 2
        self.lr = lr
        return self.batch


def mean(value):
    t = torch.tensor([value])
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


def smallest(count):
    t = torch.tensor([count])
    dist.all_reduce(t, op=dist.ReduceOp.MIN)
    return int(t)


class Patience:
    def __init__(self, rounds):
        self.rounds, self.best, self.bad = rounds, float("inf"), 0

    def exhausted(self, value):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.rounds
