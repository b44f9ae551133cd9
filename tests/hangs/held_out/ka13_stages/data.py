import torch

WIDTH = 16


class Feed:
    """Rows and targets of a step. Each stage draws what it needs from the same seed."""

    def __init__(self, micro, rows=8):
        self.micro = micro
        self.rows = rows

    def inputs(self, step, index):
        generator = torch.Generator().manual_seed(step * 100 + index)
        return torch.randn(self.rows, WIDTH, generator=generator)

    def targets(self, step, index):
        target = self.inputs(step, index).cumsum(1).tanh()
        if step % 50 == 7:
            target = target * 40.0
        return target
