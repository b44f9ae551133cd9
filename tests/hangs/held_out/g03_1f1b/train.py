"""1F1B with batch_isend_irecv; the steady phase sends and receives at once."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICROS, ROWS = 8, 6, 2


def transfer(*ops):
    ops = [dist.P2POp(fn, t, peer) for fn, t, peer in ops if peer is not None]
    if ops:
        for work in dist.batch_isend_irecv(ops):
            work.wait()


class Stage:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.up = rank - 1 if rank else None
        self.down = rank + 1 if rank + 1 < world else None
        torch.manual_seed(rank)
        self.net = nn.Linear(WIDTH, WIDTH)
        self.live = []

    def fwd(self, x):
        x = x.detach().requires_grad_()
        y = torch.tanh(self.net(x))
        self.live.append((x, y))
        return y.detach()

    def bwd(self, grad):
        x, y = self.live.pop(0)
        if self.down is None:
            y.pow(2).mean().backward()
        else:
            y.backward(grad)
        return x.grad

    def run(self, inputs):
        warmup = min(self.world - self.rank - 1, MICROS)
        steady = MICROS - warmup
        source = iter(inputs)

        def take():
            return next(source) if self.up is None else torch.empty(ROWS, WIDTH)

        for _ in range(warmup):
            x = take()
            transfer((dist.irecv, x, self.up))
            transfer((dist.isend, self.fwd(x), self.down))
        x = take()
        if steady:
            transfer((dist.irecv, x, self.up))
        for k in range(steady):
            y, grad = self.fwd(x), torch.empty(ROWS, WIDTH)
            transfer((dist.isend, y, self.down), (dist.irecv, grad, self.down))
            gx = self.bwd(grad)
            if k < steady - 1:
                x = take()
                transfer((dist.isend, gx, self.up), (dist.irecv, x, self.up))
            else:
                transfer((dist.isend, gx, self.up))
        for _ in range(warmup):
            grad = torch.empty(ROWS, WIDTH)
            transfer((dist.irecv, grad, self.down))
            transfer((dist.isend, self.bwd(grad), self.up))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    stage = Stage(dist.get_rank(), dist.get_world_size())
    for step in range(8):
        g = torch.Generator().manual_seed(step)
        stage.run([torch.randn(ROWS, WIDTH, generator=g) for _ in range(MICROS)])
        with torch.no_grad():
            for p in stage.net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        if stage.rank == 0:
            print("step", step, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
