"""Tasks are taken from a counter in the store."""
import torch.distributed as dist
from torch.distributed import distributed_c10d


class Queue:
    def __init__(self, name, size):
        self.store = dist.PrefixStore(name, distributed_c10d._get_default_store())
        self.size = size

    def __iter__(self):
        while True:
            task = self.store.add("next", 1) - 1
            if task >= self.size:
                return
            yield task


class Collector:
    """Results go to rank 0, in any order."""

    def __init__(self, rank):
        self.rank = rank
        self.results = []

    def finish(self):
        parts = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(self.results, parts, dst=0)
        return sorted(sum(parts, [])) if parts else []
