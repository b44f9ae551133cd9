import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class MemoryQueue:
    def __init__(self, size, dim):
        self.keys = F.normalize(torch.randn(size, dim, generator=torch.Generator().manual_seed(1)), dim=1)
        self.ptr = 0

    @torch.no_grad()
    def enqueue(self, keys, valid):
        if not valid.any():
            return
        keys = torch.where(valid[:, None], keys, keys[valid].mean(0))
        parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, keys.contiguous())
        new = torch.cat(parts)
        index = (self.ptr + torch.arange(len(new))) % len(self.keys)
        self.keys[index] = new
        self.ptr = int((self.ptr + len(new)) % len(self.keys))


class MoCo(nn.Module):
    def __init__(self, dim=24, out=8, momentum=0.99, temperature=0.2):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, out))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum, self.temperature = momentum, temperature

    @torch.no_grad()
    def update_key(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.lerp_(q, 1 - self.momentum)

    def forward(self, a, b, negatives):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.update_key()
            k = F.normalize(self.key(b), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ negatives.T], 1) / self.temperature
        return logits, k
