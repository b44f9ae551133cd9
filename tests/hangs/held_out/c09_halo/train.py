"""Fit a closure for a fluid solver; the domain is split into slabs."""
import torch
import torch.distributed as dist
from torch import nn

from grid import Burgers, Slab

ROWS, COLS, DX, DT, STEPS = 8, 6, 1.0, 0.2, 20


class Closure(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.net = nn.Sequential(nn.Linear(COLS, 8), nn.Tanh(), nn.Linear(8, COLS))

    def forward(self, u):
        with torch.no_grad():
            return 1e-3 * self.net(u)


def initial(slab):
    rows = torch.arange(ROWS)[:, None] + ROWS * slab.rank
    slab.u[1:-1] = 0.4 * torch.sin(rows / 4.0).expand(ROWS, COLS)


def stir(slab, step):
    """The pump at the outlet starts late."""
    outlet = slab.down is None
    if outlet and step >= 6:
        slab.u[-4:-1] += 1.0


def fit(closure, opt, slab):
    opt.zero_grad()
    loss = closure.net(slab.u[1:-1]).pow(2).mean()
    loss.backward()
    opt.step()


def main():
    dist.init_process_group("gloo")
    slab = Slab(ROWS, COLS)
    initial(slab)
    closure = Closure()
    opt = torch.optim.SGD(closure.net.parameters(), lr=1e-2)
    solver = Burgers(slab, DX, closure)
    for step in range(STEPS):
        stir(slab, step)
        energy = solver.advance(DT)
        dist.all_reduce(energy)
        fit(closure, opt, slab)
        if slab.rank == 0:
            print(f"step {step} energy {energy.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
