"""A surrogate of a heat solver is trained on its states, by two of the three ranks."""
import time

import torch
import torch.distributed as dist
from torch import nn

from domain import Part


class Surrogate:
    def __init__(self, group):
        torch.manual_seed(0)
        self.group = group
        self.net = nn.Conv1d(1, 1, 3)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def fit(self, before, after):
        loss = (self.net(before.view(1, 1, -1)) - after.view(1, 1, -1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.group)
        self.optimizer.step()
        return loss.item()


def converged(change, limit):
    worst = change.clone()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.item() < limit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    part = Part([12, 7, 9])
    learners = dist.new_group([0, 2])
    surrogate = Surrogate(learners) if rank in (0, 2) else None
    step = 0
    while True:
        before = part.cells.clone()
        change = part.advance()
        step += 1
        if surrogate is not None and step % 3 == 0:
            surrogate.fit(before, part.cells[1:-1])
        if step % 10 == 0:
            heat = part.heat
            if rank == 0:
                print(f"step {step} heat {heat:.4f}", flush=True)
            if converged(change, 0.35):
                break
    if rank == 2:
        time.sleep(8)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
