import torch
from accelerate.state import PartialState

state = PartialState(cpu=True)


class Meter:
    """Mean of a value since the last report."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    def packed(self):
        return torch.tensor([self.sum, float(self.count)])


class Tracker:
    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.history = []

    def mean(self, meter):
        parts = self.accelerator.gather(meter.packed()).view(-1, 2)
        return (parts[:, 0].sum() / parts[:, 1].sum()).item()

    @state.on_main_process
    def report(self, step, meter):
        value = self.mean(meter)
        self.history.append((step, value))
        print(f"step {step}: loss {value:.4f}", flush=True)
