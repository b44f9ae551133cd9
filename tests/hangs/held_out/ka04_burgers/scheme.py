import math

import torch


class Burgers:
    def __init__(self, halo, dx, viscosity=0.002, cfl=0.5):
        self.halo = halo
        self.dx = dx
        self.viscosity = viscosity
        self.cfl = cfl

    def rate(self, u):
        p = self.halo.pad(u)
        flux = 0.5 * p * p
        drift = (flux[1:-1] - flux[:-2]) / self.dx
        spread = (p[2:] - 2 * p[1:-1] + p[:-2]) / self.dx ** 2
        return self.viscosity * spread - drift

    def substeps(self, u, dt):
        stable = self.cfl * self.dx / float(u.abs().max())
        return max(1, math.ceil(dt / stable))

    def advance(self, u, dt):
        parts = self.substeps(u, dt)
        for _ in range(parts):
            u = u + dt / parts * self.rate(u)
        return u
