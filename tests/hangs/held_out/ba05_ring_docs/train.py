"""Sequence parallel training: each rank holds a part of every sequence."""
import torch
import torch.distributed as dist
from torch import nn

from data import sequence, shard
from ring import Ring, ring_attention


class Layer(nn.Module):
    def __init__(self, ring, dim=8):
        super().__init__()
        self.ring = ring
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, docs):
        q, k, v = self.qkv(x).chunk(3, dim=1)
        return x + self.out(ring_attention(self.ring, q, k, v, docs))


def reduce_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    dist.init_process_group("gloo")
    ring = Ring()
    torch.manual_seed(0)
    model = Layer(ring)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        x, docs = sequence(step)
        x, docs = shard(x, ring.rank, ring.world), shard(docs, ring.rank, ring.world)
        loss = (model(x, docs) - x.roll(1, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model)
        optimizer.step()
        if ring.rank == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
