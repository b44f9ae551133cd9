"""Batch statistics over all ranks: SyncBatchNorm's sums, written for the CPU."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SyncNorm(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch.cat([x.sum(0), x.square().sum(0), x.new_full((1,), len(x))])
        total, squares, (count,) = collective.all_reduce(sums).split([x.shape[1], x.shape[1], 1])
        mean = total / count
        variance = squares / count - mean.square()
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(12, 24), SyncNorm(24), nn.ReLU(), nn.Linear(24, 2))
    wrapped = DistributedDataParallel(model)
    for _ in range(3):
        wrapped(torch.randn(6, 12)).square().mean().backward()
        wrapped.zero_grad()
    gathered = collective.all_gather(torch.randn(4, requires_grad=True))
    torch.stack(list(gathered)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
