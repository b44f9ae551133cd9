"""Pipeline with batch_isend_irecv. Messages carry the step and the micro-batch in their tag."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICROS, ROWS = 10, 3, 6
FORWARD, BACKWARD = 0, 1


class LossScaler:
    """Halves the scale and skips the update after an overflow."""

    def __init__(self, scale):
        self.scale = scale

    def overflow(self, grads):
        return any(g.abs().max() * self.scale > 65504 for g in grads)


class Stage:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.rank)
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.updates = 0
        self.scaler = LossScaler(1024.0)
        self.spike = self.rank == 2

    def tag(self, direction, micro):
        return (self.updates * MICROS + micro) * 2 + direction

    def exchange(self, recv=None, send=None):
        """recv and send are (tensor, peer, tag)."""
        ops = []
        if recv is not None:
            ops.append(dist.P2POp(dist.irecv, recv[0], recv[1], tag=recv[2]))
        if send is not None:
            ops.append(dist.P2POp(dist.isend, send[0], send[1], tag=send[2]))
        if ops:
            for work in dist.batch_isend_irecv(ops):
                work.wait()

    def forward(self, x):
        saved = []
        for m, chunk in enumerate(x.split(ROWS // MICROS)):
            if self.rank > 0:
                chunk = torch.empty_like(chunk)
                self.exchange(recv=(chunk, self.rank - 1, self.tag(FORWARD, m)))
            chunk.requires_grad_()
            out = self.net(chunk)
            if self.rank < self.world - 1:
                self.exchange(send=(out.detach(), self.rank + 1, self.tag(FORWARD, m)))
            saved.append((chunk, out))
        return saved

    def backward(self, saved):
        for m, (chunk, out) in enumerate(saved):
            if self.rank == self.world - 1:
                out.pow(2).mean().backward()
            else:
                grad = torch.empty_like(out)
                self.exchange(recv=(grad, self.rank + 1, self.tag(BACKWARD, m)))
                out.backward(grad)
            if self.rank > 0:
                self.exchange(send=(chunk.grad, self.rank - 1, self.tag(BACKWARD, m)))

    def update(self, step):
        grads = [p.grad for p in self.net.parameters()]
        if self.spike and step == 4:
            grads[0].mul_(1e9)
        if self.scaler.overflow(grads):
            self.scaler.scale /= 2
        else:
            with torch.no_grad():
                for p, g in zip(self.net.parameters(), grads):
                    p -= 0.01 * g
            self.updates += 1
        self.net.zero_grad()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    stage = Stage()
    for step in range(20):
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
        stage.backward(stage.forward(x))
        stage.update(step)
        if stage.rank == 0:
            print("step", step, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
