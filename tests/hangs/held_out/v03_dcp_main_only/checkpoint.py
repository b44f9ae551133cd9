import os
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict


class Checkpointer:
    """Saves every `every` steps and keeps the newest `keep` folders."""

    def __init__(self, model, optimizer, every=4, keep=2):
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.keep = keep
        self.is_main = dist.get_rank() == 0
        self.saved = []
        root = [tempfile.mkdtemp(prefix="ckpt_") if self.is_main else None]
        dist.broadcast_object_list(root, src=0)
        self.root = root[0]

    def path(self, step):
        return os.path.join(self.root, f"step_{step:06d}")

    def state(self):
        model_state, optim_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optim": optim_state}

    def save(self, step):
        state = self.state()
        dcp.save(state, checkpoint_id=self.path(step))
        self.saved.append(self.path(step))
        del self.saved[: -self.keep]

    def maybe_save(self, step):
        if step == 0 or step % self.every:
            return
        if self.is_main:
            self.save(step)
