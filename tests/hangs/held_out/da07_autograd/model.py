import torch
from torch import nn

from parallel import ShardedLinear


class Reader(nn.Module):
    """A replicated encoder, then a classifier whose columns are sharded."""

    def __init__(self, rank, world, width=12, classes=12):
        super().__init__()
        torch.manual_seed(1)
        self.encoder = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        self.classifier = ShardedLinear(width, classes, rank, world)

    def forward(self, x):
        return self.classifier(self.encoder(x))


class FreezeSchedule:
    """Freezes the encoder when the validation loss has stopped to improve."""

    def __init__(self, module, patience=2, margin=1e-3):
        self.module = module
        self.patience = patience
        self.margin = margin
        self.best = float("inf")
        self.stale = 0

    def update(self, loss):
        if loss < self.best - self.margin:
            self.best = loss
            self.stale = 0
        else:
            self.stale += 1
        if self.stale >= self.patience:
            self.module.requires_grad_(False)
