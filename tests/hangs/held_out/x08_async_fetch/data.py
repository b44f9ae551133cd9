import asyncio

import torch


class RemoteStore:
    """Stands for an object store: records come after a short latency."""

    def __init__(self, rank, n=200):
        g = torch.Generator().manual_seed(rank)
        self.records = [{"x": torch.randn(5, generator=g), "label": i % 2} for i in range(n)]
        if rank == 1:
            del self.records[77]["label"]

    async def get(self, i):
        await asyncio.sleep(0.002)
        return self.records[i % len(self.records)]


class Fetcher:
    def __init__(self, store, batch, depth=4):
        self.store, self.batch, self.depth = store, batch, depth
        self.queue = None
        self.task = None

    async def start(self):
        self.queue = asyncio.Queue(self.depth)
        self.task = asyncio.create_task(self._produce())

    async def _produce(self):
        i = 0
        while True:
            rows = await asyncio.gather(*(self.store.get(i + k) for k in range(self.batch)))
            x = torch.stack([r["x"] for r in rows])
            y = torch.tensor([r["label"] for r in rows])
            await self.queue.put((x, y))
            i += self.batch

    async def next(self):
        return await self.queue.get()
