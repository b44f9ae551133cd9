"""Train a small network on the CPU, data parallel by hand or with --ddp: the program of docs/howto.

commtrace run --nproc 2 -o run.json examples/howto/train.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network(width: int = 96, depth: int = 12) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(steps: int, ddp: bool) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(network()) if ddp else network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, labels = torch.randn(64, 96), torch.randint(10, (64,))
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    for step in range(steps):
        loss = nn.functional.cross_entropy(model(batch[mine]), labels[mine])
        loss.backward()
        if not ddp:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ddp", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.steps, options.ddp)
    dist.destroy_process_group()
