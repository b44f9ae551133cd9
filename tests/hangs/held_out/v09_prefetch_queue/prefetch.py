import queue
import threading


class Prefetcher:
    """Runs an iterator in a thread, a few batches ahead of the training."""

    END = object()

    def __init__(self, source, depth=3):
        self.source = source
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self.thread.start()

    def _fill(self):
        for item in self.source:
            self.queue.put(item)
        self.queue.put(self.END)

    def __iter__(self):
        while True:
            item = self.queue.get()
            if item is self.END:
                return
            yield item
