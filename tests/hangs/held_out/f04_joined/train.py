import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def inputs(rank):
    g = torch.Generator().manual_seed(rank)
    for i in range(20 + 15 * rank):
        if i > 40:
            time.sleep(0.25)
        yield torch.randn(8, 8, generator=g)


def epoch(model, opt, rank):
    n = 0
    with Join([model]):
        for x in inputs(rank):
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
    return n


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 8)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for n in range(3):
        steps = torch.tensor([epoch(model, opt, rank)])
        dist.all_reduce(steps)
        if rank == 0:
            print("epoch", n, "batches", int(steps), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
