import os
import time

import torch
import torch.distributed as dist


class Checkpointer:
    """Every rank writes its shard below its own scratch folder; a failed attempt is repeated."""

    def __init__(self, root, rank, attempts=3, keep=2):
        self.root = root
        self.rank = rank
        self.attempts = attempts
        self.keep = keep
        self.saved = []

    def folder(self, step):
        return os.path.join(self.root, f"step-{step}")

    def write(self, step, state):
        folder = self.folder(step)
        os.mkdir(folder)
        with open(os.path.join(folder, "shard.pt"), "wb") as f:
            torch.save(state, f)
        self.saved.append(step)

    def clear(self, step):
        folder = self.folder(step)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        os.rmdir(folder)

    def prune(self):
        while len(self.saved) > self.keep:
            self.clear(self.saved.pop(0))

    def save(self, step, state):
        for attempt in range(self.attempts):
            try:
                dist.barrier()
                self.write(step, state)
                break
            except FileExistsError:
                print(f"rank {self.rank}: step {step} was there already, attempt {attempt}", flush=True)
                self.clear(step)
                time.sleep(0.1)
        self.prune()
