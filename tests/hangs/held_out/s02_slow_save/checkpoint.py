import os
import tempfile
import time

import torch
import torch.distributed as dist


class Checkpointer:
    """Rank 0 writes to a slow disk and retries; all ranks hear whether it worked."""

    def __init__(self, rank):
        self.rank = rank
        self.writes = 0

    def write(self, path, state):
        self.writes += 1
        time.sleep(1.5)
        if self.writes == 1:
            raise OSError("disk is busy")
        torch.save(state, path)

    def save(self, model):
        ok = torch.zeros(1)
        if self.rank == 0:
            with tempfile.TemporaryDirectory() as folder:
                for _ in range(3):
                    try:
                        self.write(os.path.join(folder, "model.pt"), model.state_dict())
                    except OSError as error:
                        print("again after:", error, flush=True)
                        continue
                    ok.fill_(1)
                    break
        dist.broadcast(ok, src=0)
        return bool(ok)
