import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.ff(self.norm(x))


def build_stage(index, count, width=16):
    torch.manual_seed(index)
    layers = [Block(width), Block(width)]
    if index == count - 1:
        layers.append(nn.Linear(width, 4))
    return nn.Sequential(*layers)


class Patience:
    def __init__(self, patience=2, min_delta=0.02):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0

    def update(self, loss):
        if loss < self.best - self.min_delta:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience
