import asyncio

import torch


class Feed:
    """Reads records concurrently and puts batches into a queue."""

    def __init__(self, rank, size=8, depth=2):
        self.rank, self.size = rank, size
        self.queue = asyncio.Queue(depth)
        self.task = None

    def start(self):
        self.task = asyncio.create_task(self.produce())

    async def record(self, key):
        await asyncio.sleep(0)
        text = f"{key % 7}:{key * 0.37 % 1:.3f}" if key != 2101 else "1;0.3"
        label, value = text.split(":")
        return int(label), float(value)

    async def produce(self):
        key = 1000 * self.rank
        while True:
            rows = await asyncio.gather(*(self.record(key + i) for i in range(self.size)))
            labels = torch.tensor([r[0] for r in rows])
            values = torch.tensor([r[1] for r in rows])
            await self.queue.put((values, labels))
            key += self.size

    async def batch(self):
        return await self.queue.get()
