import torch
import torch.distributed as dist
from torch import nn

from micro import FEATURES, MICRO

HIDDEN = 12


class FirstStage:
    def __init__(self, following):
        self.net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh())
        self.following = following
        self.pending = []

    def forward(self, x):
        out = self.net(x)
        dist.send(out.detach(), self.following)
        self.pending.append(out)

    def backward(self):
        grad = torch.empty(MICRO, HIDDEN)
        dist.recv(grad, self.following)
        self.pending.pop(0).backward(grad)


class LastStage:
    def __init__(self, previous):
        self.net = nn.Linear(HIDDEN, 1)
        self.previous = previous
        self.losses = []

    def forward(self):
        x = torch.empty(MICRO, HIDDEN)
        dist.recv(x, self.previous)
        x.requires_grad_()
        loss = self.net(x).square().mean()
        self.losses.append((x, loss))

    def backward(self):
        x, loss = self.losses.pop(0)
        loss.backward()
        dist.send(x.grad, self.previous)
        return loss.item()
