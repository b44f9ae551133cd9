import torch

FEATURES = 7


class Reader:
    def __init__(self, rank, batches=10):
        self.rank, self.batches = rank, batches

    def read(self, epoch, index):
        gen = torch.Generator().manual_seed(10_000 * self.rank + 100 * epoch + index)
        rows = torch.randn(12, FEATURES, generator=gen)
        if self.rank == 2 and (epoch, index) == (1, 6):
            rows = rows[:, :-1]
        return rows

    def __iter__(self):
        raise TypeError("use epoch()")

    def epoch(self, epoch):
        for index in range(self.batches):
            yield self.normalize(self.read(epoch, index))

    def normalize(self, rows):
        if rows.shape[1] != FEATURES:
            raise ValueError(f"expected {FEATURES} columns, found {rows.shape[1]}")
        return (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-3)
