import torch
import torch.distributed as dist
from torch import nn


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class Player:
    """A network with its optimizer and a process group of its own."""

    def __init__(self, name, net, lr):
        self.name = name
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.5, 0.99))
        self.group = dist.new_group()
        self.last = 0.0

    def learn(self, loss):
        self.opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(flat, group=self.group)
        flat /= dist.get_world_size()
        offset = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        self.opt.step()
        self.last = loss.item()
