import itertools

import torch
import torch.distributed as dist
from torch import nn

from teacher import Teacher
from views import Views

STEPS = 16


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 6))


class Distiller:
    def __init__(self):
        self.student = build()
        self.teacher = Teacher(self.student)
        self.skipped = 0

    def loss_of(self, weak, strong):
        logp = self.student(strong).log_softmax(dim=1)
        return -(self.teacher.targets(weak) * logp).sum(1).mean()

    def reduce_gradients(self):
        for p in self.student.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    def descend(self, lr=0.05):
        with torch.no_grad():
            for p in self.student.parameters():
                p -= lr * p.grad

    def step(self, weak, strong):
        loss = self.loss_of(weak, strong)
        self.student.zero_grad()
        loss.backward()
        finite = bool(torch.isfinite(loss))
        if not finite:
            for p in self.student.parameters():
                p.grad.zero_()
        self.reduce_gradients()
        self.descend()
        if not finite:
            self.skipped += 1
            return None
        self.teacher.update(self.student)
        return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    distiller = Distiller()
    for step, (weak, strong) in enumerate(itertools.islice(Views(rank), STEPS)):
        loss = distiller.step(weak, strong)
        if rank == 0:
            print(f"step {step} loss {loss}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
