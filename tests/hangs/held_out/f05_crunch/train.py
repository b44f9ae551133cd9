import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def features(seed, seconds):
    total, end = seed, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20000):
            total = (total * 1103515245 + 12345) % 2147483648
    return total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)))
    opt = torch.optim.Adam(model.parameters())
    scores = [torch.zeros(1) for _ in range(dist.get_world_size())]
    for step in range(8):
        seed = features(step, 2.5 + 0.4 * ((rank + step) % 2))
        g = torch.Generator().manual_seed(seed % 1000)
        for _ in range(20):
            x = torch.randn(64, 16, generator=g)
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        dist.all_gather(scores, loss.detach().reshape(1))
        if rank == 0:
            print(step, [s.item() for s in scores], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
