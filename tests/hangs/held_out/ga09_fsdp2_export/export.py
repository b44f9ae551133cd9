"""Exports of the sharded model for inference."""
import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def to_half(tensor):
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def full_state(model):
    state = {}
    for name, value in model.state_dict().items():
        if isinstance(value, DTensor):
            value = value.full_tensor()
        state[name] = to_half(value.detach())
    return state


class Exporter:
    def __init__(self, folder, every):
        self.folder = folder
        self.every = every
        self.written = []

    def due(self, step):
        return step > 0 and step % self.every == 0

    def write(self, step, model):
        if dist.get_rank() != 0:
            return None
        path = os.path.join(self.folder, f"export-{step}.pt")
        torch.save(full_state(model), path + ".tmp")
        os.replace(path + ".tmp", path)
        self.written.append(path)
        return path
