"""GPipe schedule from torch.distributed.pipelining; the last stage sees the loss."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from control import StopRule


def stage_module(rank, world, dim=16):
    torch.manual_seed(rank)
    layers = [nn.Linear(dim, dim), nn.Tanh()]
    if rank == world - 1:
        layers = [nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers)


def loss_fn(out, target):
    return nn.functional.cross_entropy(out, target)


def batches(n):
    g = torch.Generator().manual_seed(12)
    for _ in range(n):
        x = torch.randn(16, 16, generator=g)
        yield x, x[:, :4].argmax(1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = stage_module(rank, world)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_fn)
    opt = torch.optim.Adam(module.parameters(), lr=2e-2)
    rule = StopRule(target=0.9, window=3)
    for x, y in batches(120):
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            losses = []
            schedule.step(target=y, losses=losses)
            rule.add(torch.stack(losses).mean().item())
        else:
            schedule.step()
        opt.step()
        if rule.reached():
            break
    done = torch.ones(1)
    dist.all_reduce(done)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
