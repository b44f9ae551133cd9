import json
import queue
import threading

import torch


def make_lines(rank, n=400):
    g = torch.Generator().manual_seed(rank)
    lines = []
    for i in range(n):
        x = torch.randn(4, generator=g).tolist()
        lines.append(json.dumps({"id": i, "x": x, "y": sum(x)}) + "\n")
    return lines


class Stream:
    """Reads records from a byte offset, so that a job can resume where it was."""

    def __init__(self, path, offset=0):
        self.path, self.offset = path, offset

    def records(self):
        with open(self.path, "rb") as f:
            f.seek(self.offset)
            for line in f:
                record = json.loads(line)
                self.offset += len(line)
                yield record


class Prefetcher:
    """Makes batches in a thread of its own."""

    def __init__(self, stream, batch=8, depth=2):
        self.stream, self.batch = stream, batch
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._fill, daemon=True, name="prefetch")
        self.thread.start()

    def _fill(self):
        rows = []
        for record in self.stream.records():
            rows.append(record)
            if len(rows) == self.batch:
                x = torch.tensor([r["x"] for r in rows])
                y = torch.tensor([r["y"] for r in rows])
                self.queue.put((x, y, self.stream.offset))
                rows = []
        self.queue.put(None)

    def __iter__(self):
        while True:
            item = self.queue.get()
            if item is None:
                return
            yield item
