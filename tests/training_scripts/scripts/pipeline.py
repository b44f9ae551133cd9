"""Pipeline parallelism with the schedule named on the command line."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
from torch import nn

MICROBATCHES = 4


def main(schedule: str, chunks: int) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    num_stages = chunks * world_size
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(num_stages)]
    numbers = range(rank, num_stages, world_size)
    stages = [
        pipelining.PipelineStage(layers[n], n, num_stages, torch.device("cpu")) for n in numbers
    ]
    made = getattr(pipelining, schedule)(
        stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.SGD([p for n in numbers for p in layers[n].parameters()], lr=0.1)
    for _ in range(2):
        losses: list[torch.Tensor] = []
        given = (torch.randn(8, 16),) if rank == 0 else ()
        if rank == world_size - 1:
            made.step(*given, target=torch.randn(8, 16), losses=losses)
        else:
            made.step(*given)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
