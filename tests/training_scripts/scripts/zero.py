"""Optimizer states sharded over data-parallel ranks (ZeRO stage 1)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(40, 40) for _ in range(4)]))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.AdamW,
        lr=1e-3,
        parameters_as_bucket_view=True,
    )
    for _ in range(3):
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.consolidate_state_dict(to=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
