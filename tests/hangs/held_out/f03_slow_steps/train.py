import time

import torch
import torch.distributed as dist
from torch import nn


class Simulator:
    def __init__(self, rank):
        self.rank = rank
        self.g = torch.Generator().manual_seed(rank)

    def rollout(self, step):
        time.sleep(4.0 if (step + self.rank) % 3 == 0 else 0.7)
        n = 8 + 4 * self.rank
        return torch.randn(n, 10, generator=self.g)


def gather_rows(x):
    world = dist.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(x)]))
    longest = int(max(sizes))
    padded = nn.functional.pad(x, (0, 0, 0, longest - len(x)))
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.cat([p[:int(n)] for p, n in zip(parts, sizes)])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sim = Simulator(rank)
    torch.manual_seed(0)
    net = nn.Linear(10, 10)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(7):
        x = gather_rows(sim.rollout(step))
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, len(x), loss.item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
