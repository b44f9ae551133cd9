import math

import torch
import torch.nn.functional as F
import torch.distributed as dist


class LRFinder:
    """Raises the learning rate exponentially, and returns the one with the steepest descent."""

    def __init__(self, ddp, optimizer, low=1e-4, high=1.0, points=30):
        self.ddp, self.optimizer = ddp, optimizer
        self.low, self.high, self.points = low, high, points
        self.curve = []

    def rate(self, i):
        return self.low * (self.high / self.low) ** (i / (self.points - 1))

    def checked_loss(self, batch):
        x, y = batch
        loss = F.mse_loss(self.ddp(x), y)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss is {loss.item()}")
        return loss

    def sweep(self, batches):
        for i, batch in zip(range(self.points), batches):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(i)
            loss = self.checked_loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.ddp.parameters(), 1.0)
            self.optimizer.step()
            self.curve.append((self.rate(i), loss.item()))

    def find(self, batches):
        try:
            self.sweep(batches)
        except FloatingPointError as error:
            print(f"[{dist.get_rank()}] sweep ended after {len(self.curve)} points: {error}", flush=True)
        slopes = [(b[1] - a[1], a[0]) for a, b in zip(self.curve, self.curve[1:])]
        return min(slopes)[1]
