from collections import deque

import torch
import torch.distributed as dist


class Stage:
    def __init__(self, name, length, target):
        self.name = name
        self.length = length
        self.target = target


class Curriculum:
    """Longer sequences once the loss is below the target of the stage."""

    def __init__(self, stages, window=4):
        self.stages = stages
        self.index = 0
        self.recent = deque(maxlen=window)
        self.settings = {"length": stages[0].length, "lr": 0.05}

    @property
    def stage(self):
        return self.stages[self.index]

    def ready(self):
        if len(self.recent) < self.recent.maxlen or self.index + 1 == len(self.stages):
            return False
        return sum(self.recent) / len(self.recent) < self.stage.target

    def update(self, loss):
        self.recent.append(loss)
        if self.ready():
            self.advance()

    def advance(self):
        self.index += 1
        self.recent.clear()
        payload = [{"length": self.stage.length, "lr": self.settings["lr"] * 0.7}]
        dist.broadcast_object_list(payload, src=0)
        self.settings = payload[0]


class Sequences:
    def __init__(self, rank, noise):
        self.gen = torch.Generator().manual_seed(rank)
        self.noise = noise

    def batch(self, n, length, width=4):
        x = torch.randn(n, length, width, generator=self.gen)
        y = x.mean(1).sum(1, keepdim=True)
        return x, y + self.noise * torch.randn(n, 1, generator=self.gen)
