"""Causal attention over a ring of sequence chunks."""
import torch
import torch.distributed as dist


class Ring:
    def __init__(self):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.next = (self.rank + 1) % self.world
        self.prev = (self.rank - 1) % self.world

    def rotate(self, block):
        incoming = torch.empty_like(block)
        ops = [
            dist.P2POp(dist.isend, block.contiguous(), self.next),
            dist.P2POp(dist.irecv, incoming, self.prev),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return incoming


def causal_scores(q, k, same):
    scores = q @ k.transpose(0, 1) / q.shape[1] ** 0.5
    if same:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
    return scores


def ring_attention(ring, q, kv):
    top = torch.full((q.shape[0], 1), float("-inf"))
    norm = torch.zeros(q.shape[0], 1)
    acc = torch.zeros_like(q)
    for hop in range(ring.world):
        source = (ring.rank - hop) % ring.world
        if source > ring.rank:
            break
        k, v = kv.chunk(2, dim=1)
        scores = causal_scores(q, k, source == ring.rank)
        peak = torch.maximum(top, scores.max(1, keepdim=True).values)
        weights = (scores - peak).exp()
        fade = (top - peak).exp()
        norm = norm * fade + weights.sum(1, keepdim=True)
        acc = acc * fade + weights @ v
        top = peak
        if hop + 1 < ring.world:
            kv = ring.rotate(kv)
    return acc / norm
