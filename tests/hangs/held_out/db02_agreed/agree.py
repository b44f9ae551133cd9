import time

import torch
import torch.distributed as dist


def everyone(ok):
    """True if all ranks agree."""
    flag = torch.tensor([1 if ok else 0])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


class Source:
    def __init__(self, rank, length):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank)
        self.left = length
        self.failed = set()

    def read(self, step):
        if self.rank == 1 and step in (3, 6) and step not in self.failed:
            self.failed.add(step)
            raise OSError(f"record of step {step} not readable")
        if self.left == 0:
            return None
        self.left -= 1
        return torch.randn(8, 4, generator=self.gen)


def read_together(source, step, attempts=3):
    """All ranks repeat a read that failed on one of them."""
    for attempt in range(attempts):
        try:
            rows = source.read(step)
            good = True
        except OSError as err:
            print(f"rank {source.rank}: {err}", flush=True)
            rows, good = None, False
            time.sleep(1)
        if everyone(good):
            return rows
    raise RuntimeError("reading failed on some rank")
