import functools
import json
import time

import torch.distributed as dist
from torch.distributed.tensor import DTensor


def rank_zero_only(method):
    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        if dist.get_rank() != 0:
            return None
        return method(self, *args, **kwargs)
    return wrapper


class Callback:
    def on_fit_start(self, trainer):
        pass

    def on_step_end(self, trainer, step, loss, norm):
        pass

    def on_fit_end(self, trainer):
        pass


class Throughput(Callback):
    def __init__(self):
        self.rate = 0.0

    def on_fit_start(self, trainer):
        self.since = time.perf_counter()
        self.samples = 0

    def on_step_end(self, trainer, step, loss, norm):
        self.samples += trainer.batch
        self.rate = self.samples / (time.perf_counter() - self.since)


class MetricsFile(Callback):
    def __init__(self, path, every, weights=()):
        self.path = path
        self.every = every
        self.weights = weights
        self.file = None

    @rank_zero_only
    def on_fit_start(self, trainer):
        self.file = open(self.path, "w")

    @rank_zero_only
    def on_step_end(self, trainer, step, loss, norm):
        if step % self.every:
            return
        record = {"step": step, "loss": loss.item(), "grad_norm": float(norm)}
        for name in self.weights:
            record[f"norm/{name}"] = self._norm(trainer.model.get_parameter(name))
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    @rank_zero_only
    def on_fit_end(self, trainer):
        self.file.close()

    @staticmethod
    def _norm(weight):
        value = weight.detach().norm()
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return float(value)
