import asyncio

import torch


class Fetcher:
    def __init__(self, rank, workers=3):
        self.rank, self.workers = rank, workers
        self.got = {}

    async def download(self, url):
        await asyncio.sleep(0.01)
        epoch, n = map(int, url.split("/"))
        if (self.rank, epoch, n) == (1, 2, 5):
            raise ConnectionResetError(url)
        g = torch.Generator().manual_seed(self.rank * 1000 + epoch * 10 + n)
        return torch.randn(4, 6, generator=g)

    async def worker(self, queue):
        while True:
            url = await queue.get()
            try:
                self.got[url] = await self.download(url)
            except ConnectionError:
                continue
            queue.task_done()

    async def fetch(self, urls):
        queue = asyncio.Queue()
        for url in urls:
            queue.put_nowait(url)
        tasks = [asyncio.create_task(self.worker(queue)) for _ in range(self.workers)]
        await queue.join()
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [self.got[u] for u in urls if u in self.got]
