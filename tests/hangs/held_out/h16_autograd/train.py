"""Shared trunk, one branch per rank. Gradients of the trunk are summed in backward."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from parallel import copy_to_ranks


class Branch(nn.Module):
    """A gated residual branch."""

    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, h, gate):
        if not gate.any():
            return h
        h2 = copy_to_ranks(h)
        return h + gate.unsqueeze(1) * self.down(torch.relu(self.up(h2)))


class Model(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(dim, dim)
        torch.manual_seed(100 + dist.get_rank())
        self.branch = Branch(dim)

    def forward(self, x):
        gate = (x[:, 0] > self.threshold(x)).float()
        return self.branch(torch.tanh(self.trunk(x)), gate)

    @staticmethod
    def threshold(x):
        return x.mean()


def batch(rank, step):
    g = torch.Generator().manual_seed(rank + 17 * step)
    x = torch.randn(10, 8, generator=g)
    if rank == 0 and step == 6:
        x = torch.zeros(10, 8) + 0.5  # constant padding
    return x


def log_norms(model, step):
    norm = sum(float(p.grad.norm()) for p in model.trunk.parameters())
    mine = torch.tensor([norm], dtype=torch.float64)
    all_norms = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    dist.all_gather_into_tensor(all_norms, mine)
    if dist.get_rank() == 0:
        print(step, [round(v, 3) for v in all_norms.tolist()], flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    model = Model()
    for step in range(25):
        x = batch(dist.get_rank(), step)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        model.zero_grad()
        loss.backward()
        log_norms(model, step)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.02 * p.grad
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
