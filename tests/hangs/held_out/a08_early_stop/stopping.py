import math


class EarlyStopping:
    def __init__(self, patience, min_delta=0.0):
        self.patience = patience
        self.min_delta = min_delta
        self.best = math.inf
        self.bad = 0

    def update(self, value):
        if value < self.best - self.min_delta:
            self.best = value
            self.bad = 0
        else:
            self.bad += 1

    @property
    def stop(self):
        return self.bad >= self.patience


class Config:
    eval_every = 6
    max_steps = 240
    patience = 2
    batch = 16
    lr = 0.05

    def __init__(self, **changes):
        for name, value in changes.items():
            if not hasattr(type(self), name):
                raise AttributeError(name)
            setattr(self, name, value)
