"""Records are fetched by several coroutines and put into one queue."""
import asyncio

import torch


class Feed:
    def __init__(self, rank, files, fetchers=2, depth=4):
        self.rank = rank
        self.files = files
        self.fetchers = fetchers
        self.depth = depth

    async def download(self, name):
        await asyncio.sleep(0.002)
        g = torch.Generator().manual_seed(name * 3 + self.rank)
        return torch.randn(8, 6, generator=g)

    async def fetch(self, names, queue):
        for name in names:
            block = await self.download(name)
            if block.abs().max() > 9.0:
                raise ValueError(f"record {name} is out of range")
            await queue.put(block)
        await queue.put(None)

    async def collect(self, epoch):
        """All blocks of an epoch, from all fetchers."""
        queue = asyncio.Queue(self.depth)
        names = [epoch * 100 + n for n in range(self.files)]
        shares = [names[i::self.fetchers] for i in range(self.fetchers)]
        tasks = [asyncio.create_task(self.fetch(s, queue)) for s in shares if s]
        blocks, ended = [], 0
        while ended < self.fetchers:
            block = await queue.get()
            if block is None:
                ended += 1
            else:
                blocks.append(block)
        await asyncio.gather(*tasks)
        return blocks

    def epoch(self, number):
        self.files -= number  # files are used up as training goes on
        return asyncio.run(self.collect(number))
