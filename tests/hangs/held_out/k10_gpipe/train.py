import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from feed import batches

D = 16


def make_stage(rank, world):
    torch.manual_seed(rank)
    layer = nn.Sequential(nn.Linear(D, D), nn.Tanh())
    return layer, PipelineStage(layer, rank, world, torch.device("cpu"))


def loss_fn(out, target):
    return (out - target).pow(2).mean()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layer, stage = make_stage(rank, world)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_fn)
    opt = torch.optim.SGD(layer.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches(rank, world, 10)):
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            losses = []
            schedule.step(target=y, losses=losses)
            print(step, torch.stack(losses).mean().item(), flush=True)
        else:
            schedule.step()
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
