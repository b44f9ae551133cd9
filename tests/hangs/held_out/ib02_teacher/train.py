import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from machine import Plateau, State


class Distiller:
    def __init__(self):
        torch.manual_seed(0)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.student = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 2))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.opt = torch.optim.SGD(self.student.parameters(), lr=0.05)
        self.gen = torch.Generator().manual_seed(self.rank)
        self.pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]

    def loss(self):
        x = torch.randn(6 + self.rank, 5, generator=self.gen)
        y = torch.stack([x.sum(1), x[:, 0]], 1) * 0.2
        out = self.student(x)
        with torch.no_grad():
            soft = self.teacher(x)
        return (out - y).pow(2).mean() + 0.1 * (out - soft).pow(2).mean()

    def average(self):
        for p in self.student.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def step(self, number):
        loss = self.loss()
        self.opt.zero_grad()
        loss.backward()
        self.average()
        self.opt.step()
        if number % 3 == 2:
            self.refresh(number % self.world)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean.item() / self.world

    def refresh(self, owner):
        """One rank computes the teacher, the others receive it."""
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            if self.rank == owner:
                t.lerp_(s.detach(), 0.1)
            dist.broadcast(t, owner)

    def pair_check(self):
        value = torch.tensor([float(self.rank)])
        dist.all_reduce(value, group=self.pairs[self.rank // 2])
        return value.item()


def main():
    dist.init_process_group("gloo")
    job = Distiller()
    plateau = Plateau()
    for number in range(30):
        loss = job.step(number)
        state = plateau.advance(loss)
        if state is State.PATIENT:
            job.pair_check()
        if state is State.STOP:
            break
        if job.rank == 0:
            with tempfile.TemporaryFile() as file:
                torch.save(job.teacher.state_dict(), file)
    dist.barrier()
    if job.rank == 0:
        print("stopped at", number, plateau.state, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
