import torch
from torch import nn


class MultiTask(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, d), nn.ReLU())
        self.price = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 1))
        self.click = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, batch):
        h = self.trunk(batch["x"])
        total = nn.functional.mse_loss(self.price(h)[:, 0], batch["price"])
        labelled = batch["click"] >= 0
        if labelled.sum() == 0:
            return total
        logits = self.click(h[labelled])[:, 0]
        return total + nn.functional.binary_cross_entropy_with_logits(logits, batch["click"][labelled])
