import asyncio

import torch
import torch.distributed as dist
from torch import nn

from fetch import ShardCache, ShardServer

SHARDS = 12


class Worker:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.model = nn.Linear(5, 5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.cache = ShardCache(ShardServer(rank))

    def train_on(self, shard):
        loss = (self.model(shard) - shard.roll(1, 1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()
        return loss.item()

    async def run(self):
        self.cache.prefetch(0)
        for index in range(SHARDS):
            shard = await self.cache.get(index)
            if index + 1 < SHARDS:
                self.cache.prefetch(index + 1)
            loss = self.train_on(shard)
            if self.rank == 0:
                print(f"shard {index}: {loss:.4f}", flush=True)
            await asyncio.sleep(0)


def main():
    dist.init_process_group("gloo")
    worker = Worker(dist.get_rank())
    asyncio.run(worker.run())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
