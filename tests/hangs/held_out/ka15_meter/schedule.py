import torch
import torch.distributed as dist


class Plateau:
    """Lowers the rate if the loss does not fall. Rank 0 decides."""

    def __init__(self, optimizer, patience=3, factor=0.5):
        self.optimizer = optimizer
        self.patience = patience
        self.factor = factor
        self.best = float("inf")
        self.bad = 0

    def update(self, loss):
        rate = torch.tensor([self.optimizer.param_groups[0]["lr"]])
        if dist.get_rank() == 0:
            self.bad = 0 if loss < self.best else self.bad + 1
            self.best = min(self.best, loss)
            if self.bad > self.patience:
                rate *= self.factor
                self.bad = 0
        dist.broadcast(rate, src=0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate.item()
