"""Atomic checkpoints in a temporary directory."""
import os
import tempfile

import torch
import torch.distributed as dist

ROOT = tempfile.mkdtemp(prefix="ckpt_demo_")


class Checkpointer:
    def __init__(self, model, opt, keep=2):
        self.model = model
        self.opt = opt
        self.keep = keep
        self.saved = []

    def _write(self, step):
        path = os.path.join(ROOT, f"step{step}.pt")
        state = {"step": step, "model": self.model.state_dict(), "opt": self.opt.state_dict()}
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
        self.saved.append(path)

    def _prune(self):
        while len(self.saved) > self.keep:
            os.unlink(self.saved.pop(0))

    def save(self, step):
        self._write(step)
        self._prune()
        # nobody goes on before the file is complete
        dist.barrier()
