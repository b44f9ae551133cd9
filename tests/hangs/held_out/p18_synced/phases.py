"""Phases of the job: with checks that all ranks are there, and a table of what took how long."""
import datetime
import time

import torch.distributed as dist

LIMIT = datetime.timedelta(minutes=20)


class Phase:
    """All ranks are at the end of the block before one goes on. Bad data ends the block, not the job."""

    tolerated = (ZeroDivisionError, ValueError)

    def __init__(self, name, times):
        self.name = name
        self.times = times

    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, kind, error, traceback):
        self.times.setdefault(self.name, []).append(time.perf_counter() - self.start)
        if kind is not None:
            print(f"rank {dist.get_rank()}: {self.name}: {kind.__name__}: {error}", flush=True)
            return issubclass(kind, self.tolerated)
        dist.monitored_barrier(timeout=LIMIT)
        return False
