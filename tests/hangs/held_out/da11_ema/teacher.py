import copy

import torch
import torch.distributed as dist


class Teacher:
    """Moving average of the student; every few updates all ranks take the average of their teachers."""

    def __init__(self, student, decay=0.9, every=4):
        self.net = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        self.every = every
        self.updates = 0

    @torch.no_grad()
    def update(self, student):
        for t, s in zip(self.net.parameters(), student.parameters()):
            t.mul_(self.decay).add_(s, alpha=1 - self.decay)
        self.updates += 1
        if self.updates % self.every == 0:
            self.synchronise()

    def synchronise(self):
        for t in self.net.parameters():
            dist.broadcast(t.data, src=0)

    @torch.no_grad()
    def targets(self, x):
        return self.net(x).softmax(dim=1)
