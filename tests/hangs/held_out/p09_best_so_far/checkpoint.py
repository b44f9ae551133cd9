import os
import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict


class BestKeeper:
    """Keeps the state with the lowest validation loss."""

    def __init__(self, model):
        self.model = model
        self.best = float("inf")
        folder = [tempfile.mkdtemp(prefix="best-") if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder, src=0)
        self.folder = folder[0]

    def save(self, epoch):
        state = {"model": get_model_state_dict(self.model), "epoch": epoch}
        dcp.save(state, checkpoint_id=os.path.join(self.folder, f"epoch-{epoch}"))

    def update(self, epoch, value):
        if value < self.best:
            self.best = value
            self.save(epoch)
            return True
        return False

    def remove(self):
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
