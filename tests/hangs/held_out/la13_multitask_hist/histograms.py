import torch
import torch.distributed as dist


class GradientHistograms:
    """Histograms of the local gradients of all ranks, before they are averaged."""

    def __init__(self, every, bins=24, reach=0.05):
        self.every = every
        self.bins = bins
        self.reach = reach
        self.history = {}

    def due(self, step):
        return step % self.every == self.every - 1

    def record(self, model):
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            counts = torch.histc(parameter.grad, self.bins, -self.reach, self.reach)
            dist.all_reduce(counts)
            self.history.setdefault(name, []).append(counts)
