import random
import time

import torch
import torch.distributed as dist


class EnvironmentCrash(Exception):
    pass


class Environment:
    def __init__(self, rank):
        self.random = random.Random(rank)
        self.rank = rank
        self.resets = 0

    def reset(self):
        self.resets += 1
        if self.rank == 2 and self.resets % 7 == 3:
            raise EnvironmentCrash("simulator lost")
        return torch.zeros(4)

    def play(self, weights, length):
        state = self.reset()
        total = 0.0
        for _ in range(length):
            action = torch.tanh(weights @ state + self.random.gauss(0, 0.2))
            state = 0.9 * state + action * 0.1
            total += state.sum().item()
        return state, total


def episode(environment, weights, length, tries=3):
    for attempt in range(tries):
        try:
            return environment.play(weights, length)
        except EnvironmentCrash:
            if attempt == tries - 1:
                raise
            time.sleep(0.2)


class Actor:
    def __init__(self, rank, group, rounds, per_round):
        self.environment = Environment(rank)
        self.rank = rank
        self.group = group
        self.rounds = rounds
        self.per_round = per_round
        self.weights = torch.zeros(4, 4)

    def run(self):
        for number in range(self.rounds):
            dist.broadcast(self.weights, src=0)
            returns = []
            for _ in range(self.per_round[self.rank]):
                state, total = episode(self.environment, self.weights, length=20 * self.rank)
                returns.append(total)
                time.sleep(0.03 * self.rank)
                dist.send(torch.cat([torch.tensor([float(self.rank), total]), state]), dst=0, tag=number)
            mean = torch.tensor([sum(returns) / len(returns)])
            dist.all_reduce(mean, group=self.group)
