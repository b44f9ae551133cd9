import copy

import torch
import torch.distributed as dist
from torch import nn


class Student(nn.Module):
    def __init__(self, dim=8, classes=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, dim), nn.ReLU())
        self.proj = nn.Linear(dim, classes)
        self.head = nn.Linear(dim, classes)


class Teacher:
    def __init__(self, student, decay=0.98):
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay

    def update(self, student):
        for t, s in zip(self.model.parameters(), student.parameters()):
            t.lerp_(s.detach(), 1 - self.decay)

    @torch.no_grad()
    def label(self, x):
        probs = self.model.head(self.model.trunk(x)).softmax(-1)
        return probs.max(-1)


def average_in_backward(model):
    world = dist.get_world_size()

    def hook(param):
        dist.all_reduce(param.grad)
        param.grad /= world

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
