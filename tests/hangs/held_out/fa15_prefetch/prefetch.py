import queue
import threading


class Prefetcher:
    """Prepares batches in a thread while the step computes."""

    def __init__(self, source, prepare, depth=3):
        self.source, self.prepare = source, prepare
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.fill, name="prefetch", daemon=True)
        self.thread.start()

    def fill(self):
        for item in self.source:
            self.queue.put(self.prepare(item))
        self.queue.put(None)

    def __iter__(self):
        while True:
            item = self.queue.get()
            if item is None:
                return
            yield item
