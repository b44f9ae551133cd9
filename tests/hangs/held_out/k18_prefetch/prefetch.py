import queue
import threading

import torch


def decode(record):
    kind, payload = record.split(":", 1)
    values = [float(v) for v in payload.split(",")]
    return torch.tensor(values), float(kind == "pos")


class Prefetcher:
    def __init__(self, records, batch, depth=4):
        self.records, self.batch = records, batch
        self.queue = queue.Queue(depth)
        self.thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self.thread.start()

    def _fill(self):
        chunk = []
        for record in self.records:
            chunk.append(decode(record))
            if len(chunk) == self.batch:
                xs, ys = zip(*chunk)
                self.queue.put((torch.stack(xs), torch.tensor(ys)))
                chunk = []
        self.queue.put(None)

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            yield item
