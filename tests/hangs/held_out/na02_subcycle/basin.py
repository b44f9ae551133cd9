import math

import torch
import torch.distributed as dist


class Basin:
    """A strip of a shallow-water ocean, split explicitly: fast waves are sub-cycled."""

    CELL = 1.0

    def __init__(self, rank, wind):
        generator = torch.Generator().manual_seed(rank)
        self.height = 0.01 * torch.randn(256, generator=generator)
        self.current = torch.zeros(256)
        self.tracer = torch.rand(256, generator=generator)
        self.wind = wind

    def fastest(self):
        return 1.2 + self.current.abs().max().item()

    def gravity_wave(self, dt):
        slope = torch.roll(self.height, -1) - torch.roll(self.height, 1)
        self.current = self.current + dt * (self.wind - 0.05 * slope)
        flux = torch.roll(self.current, -1) - torch.roll(self.current, 1)
        self.height = self.height - 0.05 * dt * flux

    def remove_mean(self):
        mean = self.height.mean().reshape(1)
        dist.all_reduce(mean)
        self.height = self.height - mean / dist.get_world_size()

    def fast_waves(self, dt):
        pieces = max(1, math.ceil(self.fastest() * dt / self.CELL))
        for _ in range(pieces):
            self.gravity_wave(dt / pieces)
            self.remove_mean()

    def advect(self, dt):
        upstream = torch.roll(self.tracer, 1)
        speed = self.current.clamp(0, 1)
        self.tracer = self.tracer + 0.2 * dt * speed * (upstream - self.tracer)
