"""Two pipelines of two stages, data parallel between them; even stages compute longer and keep the cores busy."""
import time

import torch
import torch.distributed as dist
from torch import nn


def spin(seconds):
    end, n = time.time() + seconds, 0
    while time.time() < end:
        n += sum(i * i for i in range(2000))
    return n


class Pipe:
    def __init__(self, rank):
        torch.manual_seed(rank % 2)
        self.first = rank % 2 == 0
        self.peer = rank + 1 if self.first else rank - 1
        self.net = nn.Linear(10, 10) if self.first else nn.Linear(10, 2)

    def step(self, x, micro):
        for chunk in x.split(micro):
            if self.first:
                spin(0.12)
                out = torch.tanh(self.net(chunk))
                dist.send(out.detach(), self.peer)
                grad = torch.empty_like(out)
                dist.recv(grad, self.peer)
                out.backward(grad)
            else:
                h = torch.empty(len(chunk), 10)
                dist.recv(h, self.peer)
                h.requires_grad_()
                nn.functional.cross_entropy(self.net(h), (chunk[:, 0] > 0).long()).backward()
                dist.send(h.grad, self.peer)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    pipe = Pipe(rank)
    opt = torch.optim.SGD(pipe.net.parameters(), lr=0.1)
    for step in range(14):
        g = torch.Generator().manual_seed(100 * step + rank // 2)
        opt.zero_grad()
        pipe.step(torch.randn(24 if rank < 2 else 32, 10, generator=g), micro=8)
        for p in pipe.net.parameters():
            dist.all_reduce(p.grad, group=groups[rank % 2])
        opt.step()
        if rank == 1 and step % 4 == 0:
            print(f"step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
