import json
import os

import torch
from torch import nn


class Curriculum:
    """Phases of training with their lengths; a rank may bring notes about its own shard."""

    def __init__(self, rank, folder):
        self.rank = rank
        self.folder = folder
        self.phases = [6, 4, 5]

    def notes(self, phase):
        path = os.path.join(self.folder, f"notes-{self.rank}-{phase}.json")
        if self.rank != 1 or phase != 1:
            return {"scale": 1.0}
        with open(path) as f:
            return json.load(f)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)
