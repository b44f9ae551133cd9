"""A training that hangs: a rank whose loss is too large skips the step, and its collectives."""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(8, 1)
    for step in range(6):
        batch = torch.ones(4, 8)
        if dist.get_rank() == 1 and step == 3:
            batch *= 1e20
        loss = model(batch).square().mean()
        if not loss.isfinite():
            continue
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        model.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
