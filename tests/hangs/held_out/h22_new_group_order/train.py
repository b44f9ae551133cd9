"""Sequence-parallel groups are rebuilt when the context length changes."""
from datetime import timedelta

import torch
import torch.distributed as dist

SCHEDULE = [(0, 2), (4, 4), (8, 2)]  # step, size of a group


class Topology:
    """Ranks by their distance to this rank, nearest first."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # ranks of the second rack report their neighbours the other way round
        self.rack = self.rank // 4

    def blocks(self, size):
        blocks = [list(range(i, min(i + size, self.world))) for i in range(0, self.world, size)]
        return blocks[::-1] if self.rack == 1 and size > 2 else blocks


class SequenceParallel:
    def __init__(self):
        self.topology = Topology()
        self.group = None

    def rebuild(self, size):
        for ranks in self.topology.blocks(size):
            group = dist.new_group(ranks)
            if self.topology.rank in ranks:
                self.group = group

    def gather(self, x):
        n = dist.get_world_size(self.group)
        parts = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(parts, x, group=self.group)
        return torch.cat(parts)


def attention(sp, w, x):
    q = x @ w
    keys = sp.gather(x @ w)
    return torch.softmax(q @ keys.t() / q.shape[1] ** 0.5, dim=1) @ keys


def train_step(sp, w, step):
    g = torch.Generator().manual_seed(step * 8 + dist.get_rank())
    x = torch.randn(6, 4, generator=g)
    out = attention(sp, w, x)
    update = (out.t() @ x)[:4, :4] * 1e-3
    dist.all_reduce(update)
    w -= update / dist.get_world_size()
    return out.norm().item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    w = torch.randn(4, 4)
    sp = SequenceParallel()
    sizes = dict(SCHEDULE)
    for step in range(16):
        if step in sizes:
            sp.rebuild(sizes[step])
        norm = train_step(sp, w, step)
        if dist.get_rank() == 0:
            print("step", step, round(norm, 3), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
