"""GPipe with tagged send/recv; the last batch has fewer micro-batches."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

DIM, MB = 10, 3
BATCHES = [12, 12, 9, 12, 7]


class Link:
    def __init__(self, rank, world):
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world - 1 else None

    def pull(self, shape, src, tag):
        t = torch.empty(shape)
        dist.recv(t, src=src, tag=tag)
        return t

    def push(self, t, dst, tag):
        dist.send(t.contiguous(), dst=dst, tag=tag)


class Worker:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.link = Link(self.rank, self.world)
        torch.manual_seed(self.rank)
        self.net = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU())

    def forward(self, x):
        kept = []
        for i, chunk in enumerate(x.split(MB)):
            if self.link.prev is not None:
                chunk = self.link.pull(chunk.shape, self.link.prev, tag=i)
            chunk.requires_grad_()
            y = self.net(chunk)
            if self.link.next is not None:
                self.link.push(y.detach(), self.link.next, tag=i)
            kept.append((chunk, y))
        return kept

    def backward(self, kept):
        loss = 0.0
        for i, (chunk, y) in reversed(list(enumerate(kept))):
            if self.link.next is None:
                part = y.pow(2).mean()
                part.backward()
                loss += part.item()
            else:
                y.backward(self.link.pull(y.shape, self.link.next, tag=100 + i))
            if self.link.prev is not None:
                self.link.push(chunk.grad, self.link.prev, tag=100 + i)
        return loss

    def step(self):
        with torch.no_grad():
            for p in self.net.parameters():
                p -= 0.05 * p.grad
                p.grad = None


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    w = Worker()
    for epoch in range(3):
        for i, rows in enumerate(BATCHES):
            x = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(i))
            loss = w.backward(w.forward(x))
            w.step()
        out = torch.tensor([loss])
        dist.broadcast(out, src=w.world - 1)
        if w.rank == 0:
            print("epoch", epoch, out.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
