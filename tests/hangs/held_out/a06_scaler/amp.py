import torch


class LossScaler:
    """Dynamic loss scale for float16 gradients on devices without a scaler of their own."""

    def __init__(self, scale=2.0 ** 12, growth_interval=50):
        self.scale = scale
        self.growth_interval = growth_interval
        self.good = 0

    def scale_loss(self, loss):
        return loss * self.scale

    def unscale(self, params):
        finite = True
        for p in params:
            p.grad = (p.grad.half().float()) / self.scale
            finite = finite and bool(torch.isfinite(p.grad).all())
        return finite

    def update(self, finite):
        if finite:
            self.good += 1
            if self.good % self.growth_interval == 0:
                self.scale *= 2
        else:
            self.good = 0
            self.scale /= 2


def flatten_grads(params):
    return torch.cat([p.grad.flatten() for p in params])


def write_grads(params, flat):
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
