import logging

import torch
import torch.distributed as dist

log = logging.getLogger("callbacks")
REGISTRY = {}


def register(name):
    def wrap(cls):
        REGISTRY[name] = cls
        return cls
    return wrap


class Callback:
    every = 1

    def on_step_end(self, state):
        pass

    def on_fit_end(self, state):
        pass


@register("lr")
class LinearWarmup(Callback):
    def on_step_end(self, state):
        for group in state.optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (state.step + 1) / 5)


@register("hard_examples")
class HardExampleHistogram(Callback):
    """Shows how the losses of hard examples are distributed over all workers."""

    def __init__(self, threshold=1.2, bins=6):
        self.threshold, self.bins = threshold, bins
        self.history = []

    def on_step_end(self, state):
        hard = state.losses[state.losses > self.threshold]
        width = (hard.max() - hard.min()).clamp(min=1e-3)
        pos = ((hard - hard.min()) / width * (self.bins - 1)).long()
        counts = torch.bincount(pos, minlength=self.bins).float()
        table = [torch.zeros(self.bins) for _ in range(state.world)]
        dist.all_gather(table, counts)
        self.history.append(torch.stack(table).sum(0))


class CallbackRunner:
    def __init__(self, names):
        self.active = [REGISTRY[n]() for n in names]

    def fire(self, hook, state):
        for cb in list(self.active):
            try:
                getattr(cb, hook)(state)
            except RuntimeError as e:
                log.warning("callback %s failed (%s), disabled", type(cb).__name__, e)
                self.active.remove(cb)
