"""Successive halving: rank 0 hands out configurations, the other ranks train them for a while."""
import torch
import torch.distributed as dist
from torch import nn

from pool import Coordinator, Worker


class Trial:
    def __init__(self, config):
        torch.manual_seed(config)
        width = 2 + config % 7
        self.lr = 0.02 * (1 + config % 4)
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

    def train(self, steps):
        x = torch.randn(32, 4)
        y = x.prod(1, keepdim=True)
        for _ in range(steps):
            loss = (self.net(x) - y).pow(2).mean()
            self.net.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in self.net.parameters():
                    p -= self.lr * p.grad
        return loss.item()


def keep(scores):
    ranking = sorted(scores, key=scores.get)
    return ranking[: len(ranking) // 2]


def close_round(count):
    total = torch.tensor([count])
    dist.all_reduce(total)
    return total.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    steps, rounds = 5, 3
    alive = list(range(8))
    coordinator = Coordinator(list(range(1, world)))
    worker = Worker(lambda config: Trial(config).train(steps))
    for number in range(rounds):
        worker.done = 0
        if rank == 0:
            scores = coordinator.run(alive)
            alive = keep(scores)
        else:
            worker.run()
        trained = close_round(worker.done)
        steps *= 2
        if rank == 0:
            print(f"round {number}: {trained} trials, {len(alive)} stay", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
