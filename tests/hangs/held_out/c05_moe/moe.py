import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return self.net(x)


class MoE(nn.Module):
    """One expert per rank, top-1, with a capacity; overflow goes to the expert with the most room."""

    def __init__(self, dim, capacity):
        super().__init__()
        self.world = dist.get_world_size()
        self.capacity = capacity
        self.router = nn.Linear(dim, self.world, bias=False)
        self.expert = Expert(dim)

    def assign(self, x):
        choice = self.router(x).argmax(-1)
        slots = torch.full((self.world, self.capacity), -1, dtype=torch.long)
        overflow = []
        fill = [0] * self.world
        for i, e in enumerate(choice.tolist()):
            if fill[e] < self.capacity:
                slots[e, fill[e]] = i
                fill[e] += 1
            else:
                overflow.append(i)
        return slots, fill, overflow

    def rebalance(self, slots, fill, overflow):
        load = torch.tensor(fill)
        loads = [torch.empty_like(load) for _ in range(self.world)]
        dist.all_gather(loads, load)
        order = torch.stack(loads).sum(0).argsort().tolist()
        for e in order:
            while overflow and fill[e] < self.capacity:
                slots[e, fill[e]] = overflow.pop()
                fill[e] += 1

    def forward(self, x):
        slots, fill, overflow = self.assign(x)
        if overflow:
            self.rebalance(slots, fill, overflow)
        flat = slots.flatten()
        sent = torch.where((flat >= 0)[:, None], x[flat.clamp(min=0)], torch.zeros(1))
        back = AllToAll.apply(self.expert(AllToAll.apply(sent)))
        valid = flat >= 0
        return x.index_add(0, flat[valid], back[valid])
