class Patience:
    """Stops a training whose validation loss has not improved for some epochs."""

    def __init__(self, patience=2, min_delta=1e-4):
        self.patience = patience
        self.min_delta = min_delta
        self.best = float("inf")
        self.bad = 0

    def update(self, loss):
        if loss < self.best - self.min_delta:
            self.best = loss
            self.bad = 0
        else:
            self.bad += 1

    @property
    def exhausted(self):
        return self.bad >= self.patience
