"""Running statistics of the loss, and a record of unusual batches."""
import torch


class LossTracker:
    def __init__(self, accelerator, factor=3.0, momentum=0.9):
        self.accelerator = accelerator
        self.factor = factor
        self.momentum = momentum
        self.average = None
        self.spikes = []

    def update(self, step, loss):
        value = loss.detach().item()
        if self.average is None:
            self.average = value
            return
        if value > self.factor * self.average:
            everywhere = self.accelerator.gather(loss.detach().reshape(1))
            self.spikes.append((step, everywhere.tolist()))
        self.average = self.momentum * self.average + (1 - self.momentum) * value

    def summary(self):
        return {"average": self.average, "spikes": len(self.spikes)}
