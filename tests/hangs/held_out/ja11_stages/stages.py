import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader


class FirstStage:
    def __init__(self, job, data):
        self.loader = DataLoader(data, batch_size=job["micro_batch"], **job["loader"])
        self.net = nn.Sequential(nn.Linear(6, job["width"]), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=job["lr"])
        self.grad = torch.empty(job["micro_batch"], job["width"])

    def epoch(self):
        for x, y in self.loader:
            out = self.net(x)
            sends = [dist.isend(out.detach(), dst=1, tag=1), dist.isend(y, dst=2, tag=2)]
            dist.recv(self.grad, src=1, tag=3)
            for send in sends:
                send.wait()
            out.backward(self.grad)
            self.optimizer.step()
            self.optimizer.zero_grad()


class MiddleStage:
    def __init__(self, job):
        self.count = math.ceil(job["samples"] / job["micro_batch"])
        self.net = nn.Sequential(nn.Linear(job["width"], job["width"]), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=job["lr"])
        self.shape = (job["micro_batch"], job["width"])

    def epoch(self):
        for _ in range(self.count):
            x = torch.empty(self.shape)
            dist.recv(x, src=0, tag=1)
            x.requires_grad_()
            out = self.net(x)
            send = dist.isend(out.detach(), dst=2, tag=1)
            grad = torch.empty(self.shape)
            dist.recv(grad, src=2, tag=3)
            send.wait()
            out.backward(grad)
            dist.send(x.grad, dst=0, tag=3)
            self.optimizer.step()
            self.optimizer.zero_grad()


class LastStage:
    def __init__(self, job):
        self.count = math.ceil(job["samples"] / job["micro_batch"])
        self.net = nn.Linear(job["width"], 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=job["lr"])
        self.shape = (job["micro_batch"], job["width"])
        self.losses = []

    def epoch(self):
        for _ in range(self.count):
            target = torch.empty(self.shape[0], 1)
            x = torch.empty(self.shape)
            label = dist.irecv(target, src=0, tag=2)
            hidden = dist.irecv(x, src=1, tag=1)
            hidden.wait()
            label.wait()
            x.requires_grad_()
            loss = nn.functional.mse_loss(self.net(x), target)
            loss.backward()
            dist.send(x.grad, dst=1, tag=3)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
