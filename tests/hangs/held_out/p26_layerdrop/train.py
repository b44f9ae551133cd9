import torch
import torch.distributed as dist
import torch.nn as nn

from model import DeepNet
from overlap import Overlap


class Meter:
    def __init__(self):
        self.values = []

    def add(self, loss):
        value = loss.detach().reshape(1).clone()
        dist.reduce(value, dst=0)
        self.values.append(value.item() / dist.get_world_size())


def same_start(model):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)


def train(model, steps=30):
    overlap = Overlap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    meter = Meter()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        x = torch.randn(16, 20, generator=generator)
        loss = nn.functional.mse_loss(model(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        overlap.finish()
        optimizer.step()
        meter.add(loss)
        if dist.get_rank() == 0:
            print(step, f"{meter.values[-1]:.4f}", flush=True)
    overlap.remove()


def main():
    dist.init_process_group("gloo")
    seed = 17 + dist.get_rank()
    torch.manual_seed(seed)
    model = DeepNet(seed=seed)
    same_start(model)
    train(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
