import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from packing import documents

BUDGET = 256


class Accumulator:
    def __init__(self, model, opt, budget):
        self.model, self.opt, self.budget = model, opt, budget
        self.tokens = 0
        self.updates = 0

    def full_after(self, n):
        self.tokens += n
        return self.tokens >= self.budget

    def step(self, x, y):
        last = self.full_after(x.shape[0])
        with contextlib.nullcontext() if last else self.model.no_sync():
            loss = (self.model(x) - y).pow(2).mean()
            loss.backward()
        if last:
            self.opt.step()
            self.opt.zero_grad()
            self.tokens = 0
            self.updates += 1
        return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 1)))
    acc = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.01), BUDGET)
    losses = []
    for i, (x, y) in enumerate(documents(rank, 48)):
        losses.append(acc.step(x, y))
        if (i + 1) % 12 == 0:
            t = torch.tensor([sum(losses[-12:]) / 12, acc.updates])
            everyone = [torch.zeros(2) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, t)
            if rank == 0:
                print(i + 1, torch.stack(everyone).mean(0).tolist())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
