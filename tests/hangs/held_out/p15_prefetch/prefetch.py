"""Prepares batches in a thread."""
import queue
import threading

import torch


class Reader:
    """Lines of comma separated numbers, the label last."""

    def __init__(self, lines):
        self.lines = lines

    def parse(self, line):
        *values, label = line.split(",")
        return torch.tensor([float(v) for v in values]), int(label)

    def batches(self, size):
        for start in range(0, len(self.lines) - size + 1, size):
            rows = [self.parse(line) for line in self.lines[start:start + size]]
            yield torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])


class Prefetcher:
    END = object()

    def __init__(self, reader, size, depth=2):
        self.queue = queue.Queue(depth)
        self.thread = threading.Thread(target=self.fill, args=(reader, size), name="prefetch", daemon=True)
        self.thread.start()

    def fill(self, reader, size):
        for batch in reader.batches(size):
            self.queue.put(batch)
        self.queue.put(self.END)

    def __iter__(self):
        while True:
            item = self.queue.get()
            if item is self.END:
                return
            yield item
