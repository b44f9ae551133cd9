import queue
import threading

import torch


class Records:
    """Rows as text, as an export has them."""

    def __init__(self, rank, count=40):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank)
        self.count = count

    def __iter__(self):
        for i in range(self.count):
            row = torch.randn(6, generator=self.gen).tolist()
            fields = [f"{v:.4f}" for v in row]
            if self.rank == 1 and i == 21:
                fields[3] = "n/a"
            yield ",".join(fields)


class Prefetcher:
    """Parses rows in a thread; the trainer takes batches from a queue."""

    def __init__(self, records, rows=4, depth=2):
        self.records = records
        self.rows = rows
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.fill, name="prefetch", daemon=True)
        self.thread.start()

    def parse(self, line):
        return [float(field) for field in line.split(",")]

    def fill(self):
        batch = []
        for line in self.records:
            batch.append(self.parse(line))
            if len(batch) == self.rows:
                self.queue.put(torch.tensor(batch))
                batch = []
        self.queue.put(None)

    def __iter__(self):
        while True:
            batch = self.queue.get()
            if batch is None:
                return
            yield batch
