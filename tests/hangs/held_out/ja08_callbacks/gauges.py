import time

import torch
import torch.distributed as dist


class Throughput:
    def __init__(self, every):
        self.every = every
        self.since = time.perf_counter()
        self.samples = 0
        self.total = 0.0

    def on_step(self, step, model, batch):
        self.samples += batch
        if step % self.every:
            return
        rates = torch.zeros(dist.get_world_size())
        dist.all_gather_into_tensor(rates, torch.tensor([self.samples / (time.perf_counter() - self.since)]))
        self.total = rates.sum().item()
        self.since, self.samples = time.perf_counter(), 0


class GradNorm:
    def __init__(self, every):
        self.every = every
        self.history = []

    def on_step(self, step, model, batch):
        if step % self.every == 0:
            norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
            self.history.append(torch.stack(norms).norm().item())
