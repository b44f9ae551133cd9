import torch
import torch.distributed as dist
from torch import nn

import data
from evaluation import Evaluator

EPOCHS, WARMUP, AVERAGE_FROM = 6, 1, 3


class WeightAverage:
    """Mean of the weights of the last epochs; reduced in a group of its own."""

    def __init__(self, net):
        self.net, self.count = net, 0
        self.group = dist.new_group()
        self.sum = [torch.zeros_like(p) for p in net.parameters()]

    @torch.no_grad()
    def add(self):
        self.count += 1
        for s, p in zip(self.sum, self.net.parameters()):
            s += p
            dist.broadcast(s, src=0, group=self.group)


class Trainer:
    def __init__(self, rank, world):
        torch.manual_seed(0)
        self.rank, self.world = rank, world
        self.net = nn.Sequential(nn.Linear(data.DIM, 16), nn.ReLU(), nn.Linear(16, 2))
        self.batches = data.training(rank)
        shards = data.validation_shards(world)
        self.evaluator = Evaluator(self.net, shards.get(rank), sorted(shards))

    def reduce(self):
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def epoch(self):
        for x, y in self.batches:
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.net.zero_grad()
            loss.backward()
            self.reduce()
            with torch.no_grad():
                for p in self.net.parameters():
                    p -= 0.1 * p.grad
        return loss.item()

    def fit(self):
        average = None
        for epoch in range(EPOCHS):
            loss = self.epoch()
            if epoch >= AVERAGE_FROM:
                average = average or WeightAverage(self.net)
                average.add()
            if epoch < WARMUP:
                continue
            if self.evaluator.shard is not None:
                score = self.evaluator.run()
                if self.rank == 0:
                    print(f"epoch {epoch} loss {loss:.3f} precision {score:.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    Trainer(dist.get_rank(), dist.get_world_size()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
