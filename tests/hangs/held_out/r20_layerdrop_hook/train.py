import random

import torch
import torch.distributed as dist
from torch import nn

from model import Encoder
from reducer import LayerStatistics, average_gradients

STEPS = 30


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def build():
    seed_everything(0)
    return Encoder()


def batches(rank):
    seed_everything(79 + rank)     # other data on every rank
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        yield x, x.amax(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    statistics = LayerStatistics(model.layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(rank)):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    statistics.remove()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
