"""The learning rate of each round follows the loss of all ranks."""
import torch
import torch.distributed as dist


class Plateau:
    def __init__(self, lr=0.1, patience=3, factor=0.5):
        self.lr = lr
        self.patience = patience
        self.factor = factor
        self.best = float("inf")
        self.bad = 0
        self.last_loss = 1.0

    def observe(self, loss):
        self.last_loss = loss

    def rounds(self):
        """Yields the rate of the next round, the same on every rank."""
        while True:
            mean = torch.tensor(self.last_loss, dtype=torch.float64)
            dist.all_reduce(mean)
            mean = mean.item() / dist.get_world_size()
            if mean < self.best:
                self.best, self.bad = mean, 0
            else:
                self.bad += 1
            if self.bad > self.patience:
                self.lr *= self.factor
                self.bad = 0
            yield self.lr
