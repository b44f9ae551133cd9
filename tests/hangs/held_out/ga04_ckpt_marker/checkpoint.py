"""Checkpoints that are complete or absent."""
import os
import shutil
import time

import torch


class Store:
    def __init__(self, folder, keep=2):
        self.folder = folder
        self.keep = keep
        os.makedirs(folder, exist_ok=True)

    def path(self, step):
        return os.path.join(self.folder, f"step-{step:06d}")

    def save(self, step, model, optimizer):
        tmp = self.path(step) + ".partial"
        os.makedirs(tmp, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(tmp, "model.pt"))
        torch.save(optimizer.state_dict(), os.path.join(tmp, "optimizer.pt"))
        os.rename(tmp, self.path(step))
        self.retire()

    def retire(self):
        done = sorted(n for n in os.listdir(self.folder) if not n.endswith(".partial"))
        for name in done[:-self.keep]:
            shutil.rmtree(os.path.join(self.folder, name))

    def wait_for(self, step, poll=0.1):
        """Returns once the checkpoint of `step` is complete."""
        while not os.path.isdir(self.path(step)):
            time.sleep(poll)
        return self.path(step)

    def load(self, step, model):
        model.load_state_dict(torch.load(os.path.join(self.path(step), "model.pt")))
