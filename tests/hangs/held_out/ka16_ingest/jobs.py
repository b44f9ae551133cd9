import threading
import time

import torch.distributed as dist


class JobQueue:
    """Hands out part numbers, first come, first served."""

    def __init__(self, store, parts):
        self.store = dist.PrefixStore("jobs", store)
        self.parts = parts

    def __iter__(self):
        while (number := self.store.add("next", 1) - 1) < self.parts:
            yield number

    def results(self):
        return [int(self.store.get(f"rows/{part}")) for part in range(self.parts)]

    def done(self, part, rows):
        self.store.set(f"rows/{part}", str(rows))


class Heartbeat:
    def __init__(self, store, rank, period=0.5):
        self.store = dist.PrefixStore("alive", store)
        self.key = str(rank)
        self.period = period
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.beat, name="heartbeat")

    def beat(self):
        while not self.ended.wait(self.period):
            self.store.set(self.key, str(time.time()))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.ended.set()
        self.thread.join()
