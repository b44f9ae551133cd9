import torch
import torch.distributed as dist


class LocalSGD:
    """Ranks step alone; the parameters are averaged after each `period` updates."""

    def __init__(self, model, optimizer, scaler, period):
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.period = period
        self.updates = 0

    def step(self):
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.scaler.get_scale() < before:
            return False
        self.updates += 1
        if self.updates % self.period == 0:
            self.average()
        return True

    @torch.no_grad()
    def average(self):
        params = list(self.model.parameters())
        flat = torch.cat([p.flatten() for p in params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        torch.nn.utils.vector_to_parameters(flat, params)
