import datetime
import enum

import torch
import torch.distributed as dist
from torch import nn

from journal import Journal


class Phase(enum.Enum):
    WARMUP = "warmup"
    TRAIN = "train"
    COOL = "cool"
    DONE = "done"


class Machine:
    def __init__(self):
        torch.manual_seed(0)
        self.rank = dist.get_rank()
        self.model = nn.Linear(5, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.journal = Journal(limit=12)
        self.gen = torch.Generator().manual_seed(self.rank)
        self.phase = Phase.WARMUP
        self.rounds = 0

    def batch(self):
        x = torch.randn(8, 5, generator=self.gen)
        if self.rank == 1 and self.phase is Phase.TRAIN:
            x *= 3
        return x, x.mean(1, keepdim=True)

    def step(self, lr):
        for group in self.opt.param_groups:
            group["lr"] = lr
        x, y = self.batch()
        loss = (self.model(x) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
        self.opt.step()
        self.inspect(x)

    def inspect(self, x):
        for row in x[(x.abs() > 3.2).any(1)]:
            self.journal.add(f"{self.phase.value} {row.abs().max():.2f}")

    def settle(self):
        dist.monitored_barrier(timeout=datetime.timedelta(minutes=20), wait_all_ranks=True)
        self.rounds += 1

    def advance(self):
        match self.phase:
            case Phase.WARMUP:
                self.step(1e-3)
                following = Phase.TRAIN if self.rounds >= 2 else Phase.WARMUP
            case Phase.TRAIN:
                self.step(1e-2)
                following = Phase.COOL if self.rounds >= 8 else Phase.TRAIN
            case _:
                self.step(1e-4)
                following = Phase.DONE if self.rounds >= 10 else Phase.COOL
        self.settle()
        self.phase = following


def main():
    dist.init_process_group("gloo")
    machine = Machine()
    while machine.phase is not Phase.DONE:
        machine.advance()
        if machine.rank == 0:
            print(machine.phase, machine.rounds, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
