"""Detection head with a prototype bank; each class is owned by one rank, which shares its prototype."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from bank import PrototypeBank

CLASSES = ["person", "car", "bus", "dog"]
SEEN = [
    ["person", "car", "bus", "dog"],
    ["person", "car", "bus", "dog", "car"],
    ["bus", "person", "dog", "car"],
    ["person", "car", "car", "bus", "dog"],
]


class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, x):
        return self.body(x)


def scene(rank, step):
    g = torch.Generator().manual_seed(1000 * step + rank)
    names = SEEN[rank] if step >= 4 else CLASSES
    return names, torch.randn(len(names), 12, generator=g)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    head = DDP(Head(12))
    opt = torch.optim.SGD(head.parameters(), lr=0.02)
    bank = PrototypeBank(CLASSES, 12)
    for step in range(12):
        names, feats = scene(rank, step)
        out = head(feats)
        loss = bank.pull(names, out)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank.absorb(names, out.detach())
        bank.synchronize()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
