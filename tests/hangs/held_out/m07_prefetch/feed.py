import queue
import threading

import torch

END = object()


def shard_names(rank, world, epoch):
    return [f"s{epoch}{i:03d}" for i in range(rank, 24, world)]


def decode(name):
    i = int(name[1:])
    g = torch.Generator().manual_seed(i)
    raw = torch.randn(16, 32, generator=g)
    if i == 1014:
        raw = raw[:, :31]
    return raw, torch.randint(4, (16,), generator=g)


def normalise(x):
    x = x.view(-1, 4, 8)
    return ((x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)).reshape(-1, 32)


class Prefetcher:
    def __init__(self, names, depth):
        self.names = names
        self.q = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._fill, daemon=True, name="prefetch")
        self.thread.start()

    def _fill(self):
        for name in self.names:
            x, y = decode(name)
            self.q.put((normalise(x), y))
        self.q.put(END)

    def __iter__(self):
        while True:
            item = self.q.get()
            if item is END:
                return
            yield item
