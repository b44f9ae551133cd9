"""Times of phases, with the slowest rank of each."""
import time

import torch
import torch.distributed as dist


class Phase:
    def __init__(self, name, table):
        self.name = name
        self.table = table

    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            return False
        took = torch.tensor([time.perf_counter() - self.start])
        parts = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, took)
        times = torch.cat(parts)
        slowest = int(times.argmax())
        self.table.setdefault(self.name, []).append((slowest, times.max().item()))
        return False


def show(table):
    for name, rows in table.items():
        mean = sum(seconds for _, seconds in rows) / len(rows)
        print(f"{name}: {mean * 1e3:.2f} ms in {len(rows)} steps", flush=True)
