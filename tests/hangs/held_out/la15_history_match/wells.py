import torch


class WellLog:
    """Pressure readings of a well, with a weight of zero where the gauge was out of order."""

    def __init__(self, well, outages=()):
        g = torch.Generator().manual_seed(well)
        self.time = torch.linspace(0, 4, 640)
        phase = 0.4 * well
        self.pressure = torch.exp(-0.3 * self.time) * torch.cos(2 * self.time + phase)
        self.pressure += 0.02 * torch.randn(len(self.time), generator=g)
        self.weight = torch.ones_like(self.time)
        for begin, end in outages:
            self.weight[begin:end] = 0.0

    def windows(self, size):
        for start in range(0, len(self.time), size):
            cut = slice(start, start + size)
            yield self.time[cut, None], self.pressure[cut, None], self.weight[cut, None]
