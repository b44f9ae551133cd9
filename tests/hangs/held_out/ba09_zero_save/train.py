"""DDP with optimizer states sharded over the ranks."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from checkpoint import Checkpointer


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 20), nn.GELU(), nn.Linear(20, 20), nn.GELU())
        self.head = nn.Linear(20, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def samples(n, seed, noise=0.0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 7, generator=gen)
    y = x[:, 0] - 0.5 * x[:, 3] + noise * torch.randn(n, generator=gen)
    return x, y


class Validation:
    """Each rank validates on its own part."""

    def __init__(self, rank):
        self.x, self.y = samples(32, 300 + rank)
        self.shifts = {2: 4.0} if rank == 1 else {}
        self.round = 0

    @torch.no_grad()
    def __call__(self, model):
        shift = self.shifts.get(self.round, 0.0)
        self.round += 1
        return nn.functional.mse_loss(model(self.x), self.y + shift).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Regressor())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=3e-3)
    checkpoints = Checkpointer(model.module, optimizer)
    validate = Validation(rank)
    for step in range(30):
        x, y = samples(24, 10 * step + rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            saved = checkpoints.save_if_better(step, validate(model.module))
            if rank == 0:
                print(step, loss.item(), "saved" if saved else "", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
