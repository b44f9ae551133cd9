"""Data-parallel training from which nodes may be withdrawn; regroups every few steps."""
import time

import torch
import torch.distributed as dist

from membership import Membership

REGROUP = 6
SLOW = 0.5


class Trainer:
    def __init__(self, rank, world):
        torch.manual_seed(0)
        self.rank = rank
        self.members = list(range(world))
        self.group = dist.group.WORLD
        self.membership = Membership(rank, world)
        self.weight = torch.zeros(16)

    def batch(self, step):
        generator = torch.Generator().manual_seed(step * 10 + self.rank)
        rows = 2200 if (self.rank, step) == (3, 17) else 160
        x = torch.randn(rows, 16, generator=generator)
        time.sleep(rows * 0.0008)
        return x, x @ torch.arange(16.0)

    def step(self, step):
        started = time.monotonic()
        x, y = self.batch(step)
        gradient = x.t() @ (x @ self.weight - y) / len(x)
        if time.monotonic() - started > SLOW:
            waiting_for = [r for r in self.members if r not in self.membership.active()]
            print(f"rank {self.rank}: step {step} is slow, missing peers: {waiting_for}", flush=True)
        dist.all_reduce(gradient, group=self.group)
        self.weight -= 0.05 * gradient / len(self.members)

    def regroup(self):
        members = self.membership.active()
        if members == self.members:
            return self.rank in members
        self.group = dist.new_group(members)
        self.members = members
        return self.rank in members


def withdrawn(rank, step):
    """The notice of the scheduler that a node will be taken back."""
    return rank == 2 and step == 18


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainer = Trainer(rank, world)
    dist.barrier()
    for step in range(60):
        if withdrawn(rank, step):
            trainer.membership.announce("leaving")
        trainer.step(step)
        if step % REGROUP == 0 and not trainer.regroup():
            break
        if rank == 0 and step % REGROUP == 0:
            print(f"step {step}: members {trainer.members}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
