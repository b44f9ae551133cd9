import datetime
import os

import torch.distributed as dist

TIMEOUT = datetime.timedelta(minutes=30)


class Membership:
    """Builds the process group, and builds it anew for each generation of the job."""

    def __init__(self):
        self.base, self.rank, self.world = next(dist.rendezvous("env://", timeout=TIMEOUT))
        self.base.set_timeout(TIMEOUT)
        self.generation = 0

    def join(self):
        store = dist.PrefixStore(f"generation/{self.generation}", self.base)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world, timeout=TIMEOUT)

    def advance(self):
        self.generation += 1

    def rejoin(self):
        dist.barrier()
        dist.destroy_process_group()
        self.advance()
        self.join()


def workdir():
    return os.path.dirname(os.path.abspath(__file__))
