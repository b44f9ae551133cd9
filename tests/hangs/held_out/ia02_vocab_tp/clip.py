import math

import torch
import torch.distributed as dist


class Clipper:
    """Gradient norm over sharded and replicated parameters."""

    def __init__(self, model, vocab, limit):
        self.limit = limit
        self.model = model
        self.rows = math.ceil(vocab / dist.get_world_size())

    def is_sharded(self, name, param):
        return name.startswith("embed") and param.shape[0] == self.rows

    def total_norm(self):
        total = torch.zeros(1)
        for name, param in self.model.named_parameters():
            square = param.grad.pow(2).sum().reshape(1)
            if self.is_sharded(name, param):
                dist.all_reduce(square)
            total += square
        return total.sqrt()

    def __call__(self):
        norm = self.total_norm()
        scale = (self.limit / (norm + 1e-6)).clamp(max=1.0)
        for param in self.model.parameters():
            param.grad.mul_(scale)
        return norm.item()
