class EarlyStopping:
    """Stops once the loss has not improved by `delta` for `patience` rounds."""

    def __init__(self, patience=2, delta=1e-3):
        self.patience = patience
        self.delta = delta
        self.best = float("inf")
        self.bad = 0
        self.stop = False

    def update(self, loss):
        if loss < self.best - self.delta:
            self.best = loss
            self.bad = 0
        else:
            self.bad += 1
        self.stop = self.bad >= self.patience
        return self.stop


class History:
    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)

    def best(self):
        return min(self.rows, key=lambda r: r["val"])
