"""Uneven inputs with the join context manager."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Source:
    def __init__(self, rank):
        self.rank = rank
        self.g = torch.Generator().manual_seed(rank)

    def __iter__(self):
        for _ in range(10 + 3 * self.rank):
            yield torch.randn(8, 4, generator=self.g)


def epoch(net, opt, source):
    seen = 0
    with Join([net]):
        for x in source:
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
    return seen


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    for i in range(3):
        seen = epoch(net, opt, Source(rank))
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, seen)
        if rank == 0:
            print("epoch", i, counts, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
