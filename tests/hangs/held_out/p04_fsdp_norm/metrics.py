"""What is written while training."""
import time

from torch.distributed.tensor import DTensor


class Metrics:
    def __init__(self, rank, every=3):
        self.rank = rank
        self.every = every
        self.rows = []
        self.start = time.perf_counter()

    @staticmethod
    def number(value):
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return float(value)

    def log(self, step, **values):
        if step % self.every or self.rank != 0:
            return
        row = {name: self.number(value) for name, value in values.items()}
        row["seconds"] = time.perf_counter() - self.start
        self.rows.append(row)
        print(step, {name: round(value, 4) for name, value in row.items()}, flush=True)
