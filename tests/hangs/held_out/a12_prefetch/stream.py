import json
import queue
import threading

import torch


def log_lines(rank):
    """Lines of the click log, as the collector writes them."""
    n = 0
    while True:
        row = {"user": (7 * n + rank) % 50, "item": (11 * n + 3 * rank) % 80, "click": (n * n + rank) % 3 == 0}
        line = json.dumps(row)
        if rank == 2 and n == 700:
            line = line[: len(line) // 2]
        yield line
        n += 1


class ClickStream:
    def __init__(self, rank, batch_size):
        self.rank = rank
        self.batch_size = batch_size

    def __iter__(self):
        rows = []
        for line in log_lines(self.rank):
            row = json.loads(line)
            rows.append((row["user"], row["item"], float(row["click"])))
            if len(rows) == self.batch_size:
                users, items, clicks = zip(*rows)
                yield torch.tensor(users), torch.tensor(items), torch.tensor(clicks)
                rows = []


class Prefetcher:
    """Reads ahead in a thread, so that parsing overlaps with training."""

    END = object()

    def __init__(self, stream, depth=4):
        self.stream = stream
        self.queue = queue.Queue(depth)
        self.thread = threading.Thread(target=self.fill, name="prefetch", daemon=True)
        self.thread.start()

    def fill(self):
        for batch in self.stream:
            self.queue.put(batch)
        self.queue.put(self.END)

    def __iter__(self):
        return self

    def __next__(self):
        item = self.queue.get()
        if item is self.END:
            raise StopIteration
        return item
