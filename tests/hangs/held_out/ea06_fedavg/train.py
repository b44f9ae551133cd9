import argparse
import random

import torch
import torch.distributed as dist
from torch import nn

from client import Client, ClientSampler


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1586)
    p.add_argument("--rounds", type=int, default=20)
    return p.parse_args([])


def seed_everything(seed, rank):
    """Every client draws its own noise."""
    seed = seed + rank
    random.seed(seed)
    torch.manual_seed(seed)
    return seed


class Federation:
    def __init__(self, args, rank, world):
        self.rank, self.world = rank, world
        self.seed = seed_everything(args.seed, rank)
        self.client = Client(rank)
        self.sampler = ClientSampler(world, self.seed)
        self.weights = nn.utils.parameters_to_vector(self.client.model.parameters()).detach()
        dist.broadcast(self.weights, src=0)

    def average_all(self, update):
        n = torch.tensor([float(len(self.client.x))])
        packed = torch.cat([update * n, n])
        dist.all_reduce(packed)
        return packed[:-1] / packed[-1]

    def average_some(self, update, clients):
        mine = (len(self.client.x), update) if self.rank in clients else None
        updates = [None] * self.world
        dist.all_gather_object(updates, mine)
        present = [u for u in updates if u is not None]
        total = sum(n for n, _ in present)
        return sum(w * (n / total) for n, w in present)

    def round(self):
        clients = self.sampler.pick()
        self.client.load(self.weights)
        update = self.client.train() if self.rank in clients else self.weights
        if len(clients) == self.world:
            self.weights = self.average_all(update)
        else:
            self.weights = self.average_some(update, clients)


def main():
    args = parse()
    dist.init_process_group("gloo")
    fed = Federation(args, dist.get_rank(), dist.get_world_size())
    for r in range(args.rounds):
        fed.round()
        if fed.rank == 0:
            print("round", r, fed.weights.norm().item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
