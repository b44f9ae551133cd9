class CallbackList:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def on_validation_end(self, trainer, epoch, value):
        for cb in self.callbacks:
            cb.on_validation_end(trainer, epoch, value)


class History:
    def __init__(self):
        self.values = []

    def on_validation_end(self, trainer, epoch, value):
        self.values.append(value)


class Patience:
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0

    def on_validation_end(self, trainer, epoch, value):
        if value < self.best - self.min_delta:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            trainer.should_stop = True
