import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from watchdog import Cache, MemoryWatchdog

BUDGET = 100_000


class Decoder:
    def __init__(self, rank, cache):
        self.cache = cache
        self.copies = 9 if rank == 2 else 1
        self.g = torch.Generator().manual_seed(rank)

    def decode(self):
        x = torch.randn(16, 6, generator=self.g)
        for _ in range(self.copies):
            for row in x:
                self.cache.keep(row)
        time.sleep(0.1)
        return x


def fit(net, opt, decoder, steps):
    for step in range(steps):
        x = decoder.decode()
        loss = (net(x) - x.amax(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 4), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    cache = Cache(row_bytes=24)
    MemoryWatchdog(cache.nbytes, BUDGET).start()
    net = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    fit(net, opt, Decoder(dist.get_rank(), cache), 42)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
