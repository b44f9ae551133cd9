import math


class PlateauSchedule:
    """Lowers the learning rate on a plateau, and says when there is no hope any more."""

    def __init__(self, optimizer, patience=2, factor=0.5, max_cuts=2, min_delta=1e-3):
        self.optimizer = optimizer
        self.patience, self.factor = patience, factor
        self.max_cuts, self.min_delta = max_cuts, min_delta
        self.best = math.inf
        self.bad = 0
        self.cuts = 0

    def improved(self, value):
        return value < self.best - self.min_delta

    def step(self, value):
        if self.improved(value):
            self.bad = 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.factor
            self.cuts += 1
            self.bad = 0

    @property
    def exhausted(self):
        return self.cuts >= self.max_cuts
