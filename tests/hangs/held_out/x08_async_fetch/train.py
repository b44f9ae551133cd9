import asyncio

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import Fetcher, RemoteStore


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)


async def train(model, opt, fetcher, steps):
    await fetcher.start()
    for step in range(steps):
        x, y = await fetcher.next()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(step, loss.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Classifier())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    fetcher = Fetcher(RemoteStore(dist.get_rank()), batch=8)
    asyncio.run(train(model, opt, fetcher, 100))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
