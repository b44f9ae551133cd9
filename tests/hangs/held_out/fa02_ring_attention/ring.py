import math

import torch
import torch.distributed as dist


class RingExchange:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.right = (rank + 1) % world
        self.left = (rank - 1) % world

    def shift(self, kv):
        incoming = torch.empty_like(kv)
        ops = [
            dist.P2POp(dist.isend, kv.contiguous(), self.right),
            dist.P2POp(dist.irecv, incoming, self.left),
        ]
        for req in dist.batch_isend_irecv(ops):
            req.wait()
        return incoming


class OnlineSoftmax:
    def __init__(self, q):
        self.num = torch.zeros_like(q)
        self.den = torch.zeros(q.shape[:-1] + (1,))
        self.top = torch.full(q.shape[:-1] + (1,), -1e30)

    def add(self, scores, v):
        top = torch.maximum(self.top, scores.amax(-1, keepdim=True))
        fix = torch.exp(self.top - top)
        w = torch.exp(scores - top)
        self.num = self.num * fix + w @ v
        self.den = self.den * fix + w.sum(-1, keepdim=True)
        self.top = top

    def result(self):
        return self.num / self.den


@torch.no_grad()
def ring_attention(q, k, v, exchange, window=None):
    """Attention over a sequence that is split in blocks; blocks of k and v go around the ring."""
    rank, world = exchange.rank, exchange.world
    acc = OnlineSoftmax(q)
    kv = torch.stack([k, v])
    for hop in range(world):
        src = (rank - hop) % world
        scores = q @ kv[0].transpose(-1, -2) / math.sqrt(q.shape[-1])
        distance = (rank - src) % world
        if window is not None and distance * q.shape[-2] >= window[rank]:
            break
        acc.add(scores, kv[1])
        if hop < world - 1:
            kv = exchange.shift(kv)
    return acc.result()
