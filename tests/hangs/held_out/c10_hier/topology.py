from contextlib import contextmanager

import torch
import torch.distributed as dist


class Topology:
    """Nodes of `local` ranks; the first rank of each node talks to the other nodes."""

    def __init__(self, local):
        self.rank, self.world, self.local = dist.get_rank(), dist.get_world_size(), local
        self.node = self.rank // local
        self.leader = self.node * local
        for n in range(self.world // local):
            group = dist.new_group(list(range(n * local, (n + 1) * local)))
            if n == self.node:
                self.intra = group
        self.inter = dist.new_group(list(range(0, self.world, local)))

    @property
    def leads(self):
        return self.rank == self.leader


class Reducer:
    def __init__(self, topology, params):
        self.top = topology
        self.params = list(params)
        self.skipped = 0

    def flatten(self):
        return torch.cat([p.grad.flatten() for p in self.params])

    def unflatten(self, flat):
        for p, part in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(part.view_as(p))

    def reduce(self, flat):
        top = self.top
        dist.reduce(flat, dst=top.leader, group=top.intra)
        dist.broadcast(flat, src=top.leader, group=top.intra)
        if not torch.isfinite(flat).all():
            self.skipped += 1
            return torch.zeros_like(flat)
        if top.leads:
            dist.all_reduce(flat, group=top.inter)
        dist.broadcast(flat, src=top.leader, group=top.intra)
        return flat / top.world

    @contextmanager
    def synchronized(self):
        """Gradients of the backward passes in this block are averaged at its end."""
        for p in self.params:
            p.grad = None
        yield
        self.unflatten(self.reduce(self.flatten()))
