import time

from trainer import Trainer


class ProfiledTrainer(Trainer):
    """Times the steps of a range; outside of the range it is a plain trainer."""

    def __init__(self, *args, first=13, last=16, **kw):
        super().__init__(*args, **kw)
        self.first, self.last = first, last
        self.times = []
        self.start = 0.0

    def active(self, step):
        return self.first <= step <= self.last

    def before_step(self, step):
        super().before_step(step)
        self.start = time.perf_counter()

    def after_step(self, step, loss):
        if self.active(step):
            self.times.append((step, time.perf_counter() - self.start))
            self.window.append(loss)
            return
        super().after_step(step, loss)
