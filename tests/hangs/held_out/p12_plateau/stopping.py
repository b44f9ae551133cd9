"""When to stop: epochs as a generator that ends when the loss doesn't fall any more."""
import enum


class Verdict(enum.Enum):
    GO = "go"
    SLOW = "slow"
    STOP = "stop"


class Watch:
    def __init__(self, patience=2, tolerance=0.02):
        self.patience = patience
        self.tolerance = tolerance
        self.best = float("inf")
        self.waited = 0

    def judge(self, value):
        if value < self.best * (1 - self.tolerance):
            self.best = value
            self.waited = 0
            return Verdict.GO
        self.waited += 1
        return Verdict.STOP if self.waited > self.patience else Verdict.SLOW


class Epochs:
    def __init__(self, limit, watch, optimizer):
        self.limit = limit
        self.watch = watch
        self.optimizer = optimizer
        self.value = float("inf")

    def report(self, value):
        self.value = value

    def __iter__(self):
        for number in range(self.limit):
            yield number
            match self.watch.judge(self.value):
                case Verdict.STOP:
                    return
                case Verdict.SLOW:
                    for group in self.optimizer.param_groups:
                        group["lr"] *= 0.5
                case Verdict.GO:
                    pass
