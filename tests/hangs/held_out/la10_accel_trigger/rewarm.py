class Rewarm:
    """Starts the warm-up again on all processes if one of them sees a jump of its loss."""

    def __init__(self, accelerator, factor=8.0):
        self.accelerator = accelerator
        self.factor = factor
        self.mean = None

    def jumped(self, loss):
        if self.mean is None:
            self.mean = loss
        jump = loss > self.factor * self.mean
        self.mean = 0.95 * self.mean + 0.05 * min(loss, 2 * self.mean)
        return jump

    def wanted(self, loss):
        if self.jumped(loss):
            self.accelerator.set_trigger()
        return self.accelerator.flag_tensor is not None and self.accelerator.check_trigger()
