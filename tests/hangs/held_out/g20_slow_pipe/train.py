"""A ring of stages; each pass is held up at some stage for up to two seconds."""
from datetime import timedelta
import random
import time

import torch
import torch.distributed as dist
from torch import nn

PASSES, WIDTH = 8, 6


class Hiccups:
    """The same sequence on all ranks: which stage is slow, and for how long."""

    def __init__(self, world):
        self.world = world
        self.rng = random.Random(12)

    def draw(self):
        return self.rng.randrange(self.world), self.rng.random() * 2.0


class RingStage:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.rank)
        self.net = nn.Linear(WIDTH, WIDTH)
        self.hiccups = Hiccups(self.world)

    def work(self, x):
        with torch.no_grad():
            return torch.tanh(self.net(x))

    def one_pass(self, number):
        slow, delay = self.hiccups.draw()
        if slow == self.rank:
            time.sleep(delay)
        nxt, prev = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        if self.rank == 0:
            x = self.work(torch.randn(4, WIDTH))
            dist.send(x, dst=nxt, tag=number)
            dist.recv(x, src=prev, tag=number)
            return x
        x = torch.empty(4, WIDTH)
        dist.recv(x, src=prev, tag=number)
        dist.send(self.work(x), dst=nxt, tag=number)
        return None


def settle(stage, result):
    """Rank 0 says how far the result is from the last one; all damp their weights by it."""
    scale = torch.ones(1)
    if stage.rank == 0:
        scale[0] = 1 / (1 + result.norm())
    dist.broadcast(scale, src=0)
    with torch.no_grad():
        stage.net.weight *= 0.9 + 0.1 * scale


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    stage = RingStage()
    for number in range(PASSES):
        result = stage.one_pass(number)
        settle(stage, result)
        if stage.rank == 0:
            print("pass", number, round(result.norm().item(), 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
