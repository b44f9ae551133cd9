"""Gradients are exchanged in the executor while the next batch is fetched."""
import asyncio
import random
from datetime import timedelta

import torch
import torch.distributed as dist


class Source:
    def __init__(self, rank):
        self.rank = rank
        self.rng = random.Random(rank)

    async def fetch(self, step):
        await asyncio.sleep(self.rng.random() * 0.1)
        if self.rng.random() < 0.2:
            raise ConnectionError("try again")
        g = torch.Generator().manual_seed(self.rank * 19 + step)
        return torch.randn(16, 4, generator=g)

    async def fetch_retrying(self, step):
        while True:
            try:
                return await self.fetch(step)
            except ConnectionError:
                await asyncio.sleep(0.02)


class Trainer:
    def __init__(self):
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.source = Source(self.rank)
        self.w = torch.zeros(4)

    def exchange(self, grad):
        dist.all_reduce(grad)
        self.w -= 0.2 * grad / self.world

    async def run(self, steps):
        loop = asyncio.get_running_loop()
        x = await self.source.fetch_retrying(0)
        for step in range(steps):
            grad = x.t() @ (x @ self.w - x[:, 1]) / len(x)
            done = loop.run_in_executor(None, self.exchange, grad)
            following = asyncio.create_task(self.source.fetch_retrying(step + 1))
            await done
            x = await following
            if self.rank == 0 and step % 10 == 0:
                print(step, [round(v, 3) for v in self.w.tolist()], flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    asyncio.run(Trainer().run(40))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
