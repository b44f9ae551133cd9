import datetime
import time

import torch.distributed as dist


class StepSync:
    """Keeps the ranks in step; after trouble it uses the barrier that names late ranks."""

    def __init__(self, patience=2):
        self.patience = patience
        self.rejected = 0
        self.waited = 0.0

    def note(self, rejected):
        self.rejected += rejected

    @property
    def careful(self):
        return self.rejected >= self.patience

    def wait(self):
        begin = time.perf_counter()
        if self.careful:
            dist.monitored_barrier(timeout=datetime.timedelta(minutes=30), wait_all_ranks=True)
        else:
            dist.barrier()
        self.waited += time.perf_counter() - begin
