import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from budget import TimeBudget, dynamic_batches


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.heads = nn.ModuleDict({"next": nn.Linear(12, 50), "parity": nn.Linear(12, 2)})

    def forward(self, ids):
        h = self.embed(ids)
        return {name: head(h) for name, head in self.heads.items()}


def losses(out, ids):
    a = F.cross_entropy(out["next"][:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    b = F.cross_entropy(out["parity"].flatten(0, 1), (ids % 2).flatten())
    return a + b


def export(model):
    time.sleep(4)                        # a slow file system
    return sum(p.numel() for p in model.parameters())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    budget = TimeBudget(seconds=2)
    for step, ids in enumerate(dynamic_batches(rank)):
        if step == 100 or budget.over(step):
            break
        loss = losses(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("exported", export(model.module), "parameters at step", step, flush=True)
    dist.barrier()
    if rank == 1:
        print("last loss", loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
