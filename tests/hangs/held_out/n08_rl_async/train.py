from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from rollout import Collector

LEARNER = 0


def make_policy():
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def push_weights(policy):
    for p in policy.parameters():
        dist.broadcast(p.data, src=LEARNER)


class Learner:
    def __init__(self):
        self.policy = make_policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=5e-3)
        self.world = dist.get_world_size()

    def step(self, iteration):
        push_weights(self.policy)
        inbox = [None] * self.world
        dist.gather_object([], inbox, dst=LEARNER)
        episodes = [e for part in inbox for e in part]
        mean = sum(r for _, _, r in episodes) / len(episodes)
        loss = torch.zeros(())
        for obs, act, reward in episodes:
            logp = self.policy(obs).log_softmax(-1).gather(1, act[:, None]).sum()
            loss = loss - (reward - mean) * logp
        self.opt.zero_grad()
        (loss / len(episodes)).backward()
        self.opt.step()
        if iteration % 5 == 0:
            print(f"iteration {iteration} reward {mean:.2f} episodes {len(episodes)}", flush=True)


class Actor:
    def __init__(self, rank):
        self.policy = make_policy()
        self.collector = Collector(rank)

    def step(self, iteration):
        push_weights(self.policy)
        episodes = self.collector.collect(self.policy)
        dist.gather_object(episodes, None, dst=LEARNER)


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    node = Learner() if rank == LEARNER else Actor(rank)
    for iteration in range(100):
        node.step(iteration)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
