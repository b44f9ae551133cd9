import torch
import torch.distributed as dist


class Accumulator:
    """Sums gradients over a window of micro batches, then reduces and steps."""

    def __init__(self, model, optimizer, window):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer
        self.window = window
        self.pending = 0
        self.steps = 0

    def backward(self, loss):
        (loss / self.window).backward()
        self.pending += 1
        if self.pending == self.window:
            self.apply()

    def apply(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.params:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pending = 0
        self.steps += 1

    def finish(self):
        """Uses what is left of a window at the end of an epoch."""
        if self.pending:
            self.apply()
