import torch


class ManualScaler:
    """A loss scaler for code that keeps its own half precision copies."""

    def __init__(self, init=2.0 ** 10, growth=2.0, backoff=0.5, interval=20):
        self.scale_value = init
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self.good = 0

    def scale(self, loss):
        return loss * self.scale_value

    def unscale(self, params):
        finite = True
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.scale_value)
                finite = finite and bool(torch.isfinite(p.grad).all())
        return finite

    def update(self, finite):
        if not finite:
            self.scale_value *= self.backoff
            self.good = 0
            return
        self.good += 1
        if self.good % self.interval == 0:
            self.scale_value *= self.growth
