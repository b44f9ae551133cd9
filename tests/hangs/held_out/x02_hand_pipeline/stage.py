import torch
import torch.distributed as dist
import torch.nn as nn

from data import micro_batches, micro_sizes

WIDTH = 20


class Stage:
    def __init__(self, rank, world, dim_in=10, micro=4):
        torch.manual_seed(rank)
        self.rank, self.world, self.micro = rank, world, micro
        self.first, self.last = rank == 0, rank == world - 1
        self.net = nn.Sequential(nn.Linear(dim_in if self.first else WIDTH, WIDTH), nn.Tanh(),
                                 nn.Linear(WIDTH, 1 if self.last else WIDTH))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def activations(self, x):
        if self.first:
            yield from micro_batches(x, self.micro)
        else:
            for n in micro_sizes(len(x), self.micro):
                buf = torch.empty(n, WIDTH)
                dist.recv(buf, src=self.rank - 1)
                yield buf.requires_grad_()

    def forward(self, x):
        kept = []
        for inp in self.activations(x):
            out = self.net(inp)
            if not self.last:
                dist.send(out.detach(), dst=self.rank + 1)
            kept.append((inp, out))
        return kept

    def backward(self, kept, y):
        total, row = 0.0, 0
        for inp, out in kept:
            if self.last:
                loss = nn.functional.mse_loss(out, y[row:row + len(out)])
                loss.backward()
                total += loss.item()
                row += len(out)
            else:
                grad = torch.empty_like(out)
                dist.recv(grad, src=self.rank + 1)
                out.backward(grad)
            if not self.first:
                dist.send(inp.grad, dst=self.rank - 1)
        return total / max(len(kept), 1)

    def step(self, x, y):
        self.opt.zero_grad()
        kept = self.forward(x)
        loss = self.backward(kept, y)
        self.opt.step()
        return loss
