from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from guard import MemoryGuard
from replay import ReplayBuffer

ROUNDS = 20


class Learner:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.world = dist.get_world_size()
        self.policy = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.05)
        self.store = _get_default_store()
        self.buffer = ReplayBuffer(rank, MemoryGuard(budget=40_000))

    def played(self, index):
        """Episodes take unequal time: wait without a collective until all have been played."""
        self.store.set(f"played/{index}/{self.rank}", "1")
        keys = [f"played/{index}/{rank}" for rank in range(self.world)]
        self.store.wait(keys, timedelta(minutes=30))

    def learn(self):
        x = self.buffer.sample(32)
        loss = (self.policy(x)[:, 0] - x[:, 0]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.optimizer.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    learner = Learner(dist.get_rank())
    for index in range(ROUNDS):
        learner.buffer.play()
        learner.played(index)
        loss = learner.learn()
        if learner.rank == 0:
            print(f"round {index}: {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
