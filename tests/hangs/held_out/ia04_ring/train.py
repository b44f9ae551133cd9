import torch
import torch.distributed as dist
from torch import nn

from ring import Ring, ring_attention


class Probe(nn.Module):
    def __init__(self, dim, classes=3):
        super().__init__()
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(x)


class Frozen(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.ring = Ring()

    @torch.no_grad()
    def forward(self, x):
        return x + ring_attention(self.ring, self.q(x), self.kv(x))


def chunk(step, rank, length=6, dim=8):
    gen = torch.Generator().manual_seed(step * 17 + rank)
    return torch.randn(length, dim, generator=gen), torch.randint(0, 3, (length,), generator=gen)


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    trunk = Frozen(8)
    probe = Probe(8)
    opt = torch.optim.SGD(probe.parameters(), lr=0.1)
    for step in range(6):
        x, y = chunk(step, rank)
        loss = nn.functional.cross_entropy(probe(trunk(x)), y)
        opt.zero_grad()
        loss.backward()
        average(probe)
        opt.step()
        if rank == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
