"""Checkpoints of each rank (weights, optimizer, position of the data)."""
import pathlib
import pickle

import torch


class Checkpoints:
    def __init__(self, folder, rank):
        self.folder = pathlib.Path(folder) / f"rank{rank}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, epoch):
        return self.folder / f"epoch-{epoch:03d}.pt"

    def save(self, epoch, model, optimizer):
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            self.path(epoch),
        )

    def resume(self, model, optimizer):
        """Loads the newest readable checkpoint, returns the epoch to go on with."""
        for path in sorted(self.folder.glob("epoch-*.pt"), reverse=True):
            try:
                state = torch.load(path, weights_only=True)
            except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
                print(f"{path.name} is unreadable ({type(error).__name__}), trying an older one", flush=True)
                continue
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return state["epoch"] + 1
        return 0
