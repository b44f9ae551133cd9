import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from losses import PairLoss


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
        self.cls = nn.Linear(8, 4)

    def forward(self, x):
        z = self.body(x)
        return z, self.cls(z)


def batches(rank, steps):
    g = torch.Generator().manual_seed(7 * rank + 3)
    for i in range(steps):
        x = torch.randn(12, 16, generator=g)
        y = torch.randint(0, 4, (12,), generator=g)
        pair = torch.randint(0, 3, (12,), generator=g)
        if (rank, i) == (2, 4):
            pair = torch.zeros_like(pair)
        yield x, y, pair


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    pair_loss = PairLoss(weight=0.2)
    for i, (x, y, pair) in enumerate(batches(rank, 20)):
        z, logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        marked = pair > 0
        loss = loss + (pair_loss(z, marked) if marked.any() else 0.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and i % 5 == 0:
            print(i, float(loss))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
