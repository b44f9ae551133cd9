import queue
import threading

import torch

from records import parse, read_lines


class Feeder:
    """Parses batches ahead in a thread."""

    def __init__(self, rank, batch_size, depth=2):
        self.rank = rank
        self.batch_size = batch_size
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.work, name="feeder", daemon=True)
        self.thread.start()

    def work(self):
        rows = []
        for line in read_lines(self.rank):
            rows.append(parse(line))
            if len(rows) == self.batch_size:
                self.queue.put(torch.tensor(rows))
                rows = []
        self.queue.put(None)

    def __iter__(self):
        while True:
            batch = self.queue.get()
            if batch is None:
                return
            yield batch[:, :-1], batch[:, -1:]
