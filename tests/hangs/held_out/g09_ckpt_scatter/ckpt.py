"""Rank 0 writes; everyone waits at the same barrier."""
import os
import tempfile
import time

import torch
import torch.distributed as dist


class Store:
    def __init__(self):
        self.rank = dist.get_rank()
        box = [tempfile.mkdtemp(prefix="store_") if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        self.path = os.path.join(box[0], "state.pt")

    def save(self, state):
        if self.rank == 0:
            torch.save(state, self.path)
            time.sleep(0.3)  # flush to a slow disk
        dist.barrier()

    def restore(self):
        state = torch.load(self.path)
        dist.barrier()
        return state

    def drop(self):
        if self.rank == 0 and os.path.exists(self.path):
            os.unlink(self.path)
            os.rmdir(os.path.dirname(self.path))
