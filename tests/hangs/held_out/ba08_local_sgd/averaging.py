"""Local SGD: parameters are averaged now and then."""
import torch
import torch.distributed as dist


class LocalSGD:
    def __init__(self, model, samples_between=48):
        self.model = model
        self.samples_between = samples_between
        self.samples = 0
        self.rounds = 0

    def average(self):
        world = dist.get_world_size()
        for p in self.model.parameters():
            dist.all_reduce(p.data)
            p.data /= world
        self.samples = 0
        self.rounds += 1

    def step(self, optimizer, batch_size):
        optimizer.step()
        optimizer.zero_grad()
        self.samples += batch_size
        if self.samples >= self.samples_between:
            self.average()


def checksum(model):
    return sum(p.double().sum().item() for p in model.parameters())
