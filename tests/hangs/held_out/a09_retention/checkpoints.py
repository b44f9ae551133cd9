from pathlib import Path

import torch


class CheckpointManager:
    """Keeps the newest files of a folder; the first rank writes and removes them."""

    def __init__(self, folder, rank, keep=2):
        self.folder = Path(folder)
        self.rank = rank
        self.keep = keep
        self.best_step = None
        self.best_value = float("inf")

    def path(self, step):
        return self.folder / f"step-{step:05d}.pt"

    def save(self, step, model):
        if self.rank == 0:
            tmp = self.path(step).with_suffix(".tmp")
            torch.save(model.state_dict(), tmp)
            tmp.rename(self.path(step))
            self.prune()

    def prune(self):
        files = sorted(self.folder.glob("step-*.pt"))
        for old in files[:-self.keep]:
            old.unlink()

    def note(self, step, value):
        if value < self.best_value:
            self.best_step, self.best_value = step, value

    def load_best(self, model):
        state = torch.load(self.path(self.best_step), weights_only=True)
        model.load_state_dict(state)
        return self.best_step
