"""DistributedDataParallel with compressing hooks: float16, PowerSGD, and a user-defined hook."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    return DistributedDataParallel(layers, gradient_as_bucket_view=True)


def train(wrapped: DistributedDataParallel) -> None:
    optimizer = torch.optim.AdamW(wrapped.parameters())
    for _ in range(4):
        wrapped(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def averaged(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())


def main() -> None:
    dist.init_process_group("gloo")
    halved = model()
    halved.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(halved)
    low_rank = model()
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=1)
    low_rank.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(low_rank)
    own = model()
    own.register_comm_hook(None, averaged)
    train(own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
