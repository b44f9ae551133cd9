import math
import os
import shutil

import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class BestCheckpoint:
    def __init__(self, monitor, mode, folder, keep):
        self.monitor = monitor
        self.sign = 1.0 if mode == "min" else -1.0
        self.folder = folder
        self.keep = keep
        self.best = math.inf
        self.saved = []

    def _improved(self, value):
        return self.sign * value < self.best

    def on_validation_end(self, trainer, metrics):
        value = metrics[self.monitor]
        if math.isnan(value) or not self._improved(value):
            return
        self.best = self.sign * value
        path = os.path.join(self.folder, f"epoch-{trainer.epoch:03d}")
        state = {"model": trainer.model.module.state_dict(), "epoch": trainer.epoch}
        dcp.save(state, checkpoint_id=path)
        self.saved.append(path)
        self._prune()

    def _prune(self):
        while len(self.saved) > self.keep:
            path = self.saved.pop(0)
            if dist.get_rank() == 0:
                shutil.rmtree(path, ignore_errors=True)
