"""Batches come from an asynchronous client; collectives run in the executor."""
import asyncio
import functools
from datetime import timedelta

import torch
import torch.distributed as dist


class FeatureService:
    """Stands for a remote service that answers slowly now and then."""

    def __init__(self, rank):
        self.rank = rank
        self.calls = 0

    async def fetch(self, step):
        self.calls += 1
        slow = self.rank == 2 and step == 5
        await asyncio.sleep(5.0 if slow else 0.02)
        g = torch.Generator().manual_seed(self.rank * 11 + step)
        return torch.randn(20, 6, generator=g)


class Loop:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.service = FeatureService(self.rank)
        self.w = torch.zeros(6)
        self.options = {"lr": 0.1, "deadline": 2.0}
        self.missed = 0

    async def off(self, fn, *args, **kwargs):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, functools.partial(fn, *args, **kwargs))

    async def next_batch(self, step):
        return await asyncio.wait_for(self.service.fetch(step), self.options["deadline"])

    def gradient(self, x):
        err = x @ self.w - x[:, 0]
        return x.t() @ err / len(x)

    def combine(self, grad):
        dist.all_reduce(grad)
        return grad / self.world

    def exchange_options(self):
        box = [self.options if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        self.options = box[0]

    async def step(self, step):
        try:
            x = await self.next_batch(step)
        except asyncio.TimeoutError:
            self.missed += 1
            return
        grad = await self.off(self.combine, self.gradient(x))
        self.w -= self.options["lr"] * grad

    async def run(self, steps):
        for step in range(steps):
            await self.step(step)
            if step % 4 == 3:
                if self.rank == 0:
                    self.options["lr"] *= 0.9
                await self.off(self.exchange_options)
                if self.rank == 0:
                    print("step", step, self.w.tolist()[:2], flush=True)
        await self.off(dist.barrier)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    asyncio.run(Loop().run(24))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
