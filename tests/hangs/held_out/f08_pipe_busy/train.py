import threading
import time

import torch
import torch.distributed as dist
from torch import nn

D = 16


class Spinner(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True, name="index")
        self.stop = False
        self.n = 0

    def run(self):
        a = torch.randn(96, 96)
        while not self.stop:
            a = torch.tanh(a @ a)
            self.n += 1


def heavy(x, seconds):
    end = time.monotonic() + seconds
    w = torch.eye(256)
    while time.monotonic() < end:
        w = w @ w
    return x


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    spin = Spinner()
    spin.start()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(D, D), nn.Tanh())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(6):
        if rank == 0:
            x = torch.randn(8, D)
        else:
            x = torch.empty(8, D)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = net(heavy(x, 3.0 if rank == 1 else 0.3))
        if rank < world - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = y.square().mean()
            loss.backward()
            print(step, loss.item(), flush=True)
        if rank > 0:
            dist.send(x.grad, rank - 1)
        opt.step()
        opt.zero_grad()
    spin.stop = True
    spin.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
