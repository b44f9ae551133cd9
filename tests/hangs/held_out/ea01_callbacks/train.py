from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F

from callbacks import CallbackRunner
from model import SmallNet


def make_batch(rank, step, size=12):
    g = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(size, 1, 8, 8, generator=g)
    y = torch.randint(0, 4, (size,), generator=g)
    if rank == 2 and step == 5:
        # an augmentation that blanks images, labelled as background
        x = torch.zeros_like(x)
        y = torch.zeros_like(y)
    return x, y


def average_gradients(model, world):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def fit(model, optimizer, runner, rank, world, steps=12):
    state = SimpleNamespace(optimizer=optimizer, world=world, step=0, losses=None)
    for step in range(steps):
        x, y = make_batch(rank, step)
        losses = F.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        average_gradients(model, world)
        optimizer.step()
        state.step, state.losses = step, losses.detach()
        runner.fire("on_step_end", state)
    runner.fire("on_fit_end", state)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = SmallNet()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([2.0, 0.0, 0.0, 0.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runner = CallbackRunner(["lr", "hard_examples"])
    fit(model, optimizer, runner, rank, world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
