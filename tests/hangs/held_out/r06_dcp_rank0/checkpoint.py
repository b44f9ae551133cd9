import os
import shutil
import tempfile

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict


class Checkpointer:
    def __init__(self, rank, keep=2):
        self.rank = rank
        self.keep = keep
        self.saved = []
        self.root = tempfile.mkdtemp(prefix="ckpt-")

    def save(self, step, model, optimizer):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        folder = os.path.join(self.root, f"step-{step:05d}")
        dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=folder)
        self.saved.append(folder)
        self.prune()

    def prune(self):
        while len(self.saved) > self.keep:
            shutil.rmtree(self.saved.pop(0), ignore_errors=True)

    def close(self):
        shutil.rmtree(self.root, ignore_errors=True)
