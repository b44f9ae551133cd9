import pathlib
import time

import torch


class Keeper:
    """Writes checkpoints and keeps the newest ones."""

    def __init__(self, folder, keep=3):
        self.folder = pathlib.Path(folder)
        self.keep = keep

    def path(self, step):
        return self.folder / f"step-{step:05d}.pt"

    def save(self, step, model):
        temporary = self.folder / f".step-{step:05d}.tmp"
        torch.save(model.state_dict(), temporary)
        temporary.rename(self.path(step))
        self.prune()

    def prune(self):
        files = sorted(self.folder.glob("step-*.pt"))
        for path in files[: -self.keep]:
            path.unlink()

    def load(self, step):
        path = self.path(step)
        wait_for(path)
        return torch.load(path, weights_only=True)


def wait_for(path, interval=0.1):
    """Shared file systems show new files late."""
    while not path.exists():
        time.sleep(interval)
