import queue
import threading

import torch


class Prefetcher:
    """Encodes documents ahead of training."""

    def __init__(self, documents, cache, length=24, depth=2):
        self.documents, self.cache, self.length = documents, cache, length
        self.batches = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.produce, name="prefetch", daemon=True)
        self.thread.start()

    def produce(self):
        for name, text in self.documents:
            ids = self.cache.get(name, text)
            self.batches.put(torch.tensor(ids[:self.length]))
        self.batches.put(None)

    def __iter__(self):
        while True:
            batch = self.batches.get()
            if batch is None:
                return
            yield batch
