import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from checkpoint import Checkpointer

STEPS, EVERY = 14, 3


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.net = nn.Sequential(nn.Linear(6, 9), nn.LeakyReLU(), nn.Linear(9, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def leftovers(root, rank):
    """What a node may still have of an earlier run."""
    if rank == 2:
        os.makedirs(os.path.join(root, f"step-{2 * EVERY}"))


def descend(model, lr=0.05):
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
            p.grad = None


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    gen = torch.Generator().manual_seed(rank)
    with tempfile.TemporaryDirectory() as root:
        leftovers(root, rank)
        model = DistributedDataParallel(Critic())
        checkpoints = Checkpointer(root, rank)
        for step in range(1, STEPS + 1):
            x = torch.randn(12, 6, generator=gen)
            loss = (model(x) - x.prod(1)).pow(2).mean()
            loss.backward()
            descend(model)
            if step % EVERY == 0:
                checkpoints.save(step, {"step": step, "model": model.module.state_dict()})
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
