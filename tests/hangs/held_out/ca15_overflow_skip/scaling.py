import torch
import torch.distributed as dist


class LossScaler:
    def __init__(self, scale=2.0**10, growth_every=50):
        self.scale = scale
        self.growth_every = growth_every
        self.good = 0

    def overflowed(self, params):
        return any(not torch.isfinite(p.grad).all() for p in params)

    def backoff(self):
        self.scale /= 2
        self.good = 0

    def grow(self):
        self.good += 1
        if self.good % self.growth_every == 0:
            self.scale *= 2


class MixedOptimizer:
    """Averages the gradients, clips them, and updates the master weights in float32."""

    def __init__(self, params, lr, clip=1.0):
        self.params = list(params)
        self.inner = torch.optim.SGD(self.params, lr=lr, momentum=0.9)
        self.scaler = LossScaler()
        self.clip = clip
        self.skipped = 0

    def backward(self, loss):
        self.inner.zero_grad()
        (loss * self.scaler.scale).backward()

    def _average(self):
        world = dist.get_world_size()
        for p in self.params:
            p.grad /= self.scaler.scale
            dist.all_reduce(p.grad)
            p.grad /= world

    def step(self):
        if self.scaler.overflowed(self.params):
            self.scaler.backoff()
            self.skipped += 1
            return None
        self._average()
        norm = torch.nn.utils.clip_grad_norm_(self.params, self.clip)
        self.inner.step()
        self.scaler.grow()
        return norm.item()
