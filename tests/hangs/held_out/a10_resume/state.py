import logging
import os

import torch

log = logging.getLogger("resume")


class RankStates:
    """One file of optimizer and data state for each rank and saved step."""

    def __init__(self, folder, rank):
        self.folder = folder
        self.rank = rank

    def name(self, step):
        return os.path.join(self.folder, f"state-{step:04d}-rank{self.rank}.pt")

    def steps(self):
        tail = f"-rank{self.rank}.pt"
        return sorted(int(f[6:10]) for f in os.listdir(self.folder) if f.endswith(tail))

    def save(self, step, model, opt):
        torch.save({"step": step, "model": model.state_dict(), "opt": opt.state_dict()}, self.name(step))

    def load_latest(self, model, opt):
        for step in reversed(self.steps()):
            try:
                state = torch.load(self.name(step), weights_only=True)
            except (RuntimeError, EOFError, OSError) as error:
                log.warning("rank %d: %s is not readable (%s)", self.rank, self.name(step), type(error).__name__)
                continue
            model.load_state_dict(state["model"])
            opt.load_state_dict(state["opt"])
            return state["step"]
        return 0
