"""Checkpoints with the newest few kept."""
import os
import tempfile

import torch
import torch.distributed as dist


class Checkpointer:
    def __init__(self, model, optimizer, keep=2):
        self.model = model
        self.optimizer = optimizer
        self.keep = keep
        self.best = float("inf")
        self.paths = []
        self.folder = tempfile.mkdtemp(prefix="ckpt")

    def state(self, step):
        self.optimizer.consolidate_state_dict(to=0)
        state = {"step": step, "model": self.model.state_dict()}
        if dist.get_rank() == 0:
            state["optimizer"] = self.optimizer.state_dict()
        return state

    def save(self, step):
        state = self.state(step)
        if dist.get_rank() != 0:
            return
        path = os.path.join(self.folder, f"step{step}.pt")
        torch.save(state, path)
        self.paths.append(path)
        while len(self.paths) > self.keep:
            os.remove(self.paths.pop(0))

    def save_if_better(self, step, loss):
        if loss >= self.best:
            return False
        self.best = loss
        self.save(step)
        return True
