"""Loss scaling for half-precision gradients on CPU."""
import torch


class LossScaler:
    def __init__(self, scale=2.0 ** 10, growth_interval=8):
        self.scale = scale
        self.growth_interval = growth_interval
        self.good = 0
        self.skipped = 0

    def scaled(self, loss):
        return loss * self.scale

    def unscale(self, parameters):
        """Divides by the scale; returns whether all gradients fit into half precision."""
        fits = True
        for p in parameters:
            half = p.grad.to(torch.float16)
            fits = fits and bool(torch.isfinite(half).all())
            p.grad.copy_(half.float() / self.scale)
        return fits

    def update(self, ok):
        if ok:
            self.good += 1
            if self.good % self.growth_interval == 0:
                self.scale *= 2
        else:
            self.skipped += 1
            self.good = 0
            self.scale /= 2
