class EarlyStopping:
    """Stops after `patience` evaluations without an improvement."""

    def __init__(self, patience=2, min_delta=1e-3):
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
        return self.bad >= self.patience


class History:
    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)

    def last(self, key):
        return self.rows[-1][key]
