import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tracking import make_tracker


@torch.no_grad()
def evaluate(model, x, y):
    error = (model.module(x) - y).abs().mean()
    dist.all_reduce(error)
    return error / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=400)
    generator = torch.Generator().manual_seed(rank)
    held_out = torch.randn(64, 10, generator=generator)
    held_target = held_out.sin().sum(1, keepdim=True)
    tracker = make_tracker(rank, "run.jsonl")
    tracker.log(event="start", world=dist.get_world_size(), parameters=sum(p.numel() for p in model.parameters()))
    for step in range(400):
        x = torch.randn(32, 10, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        tracker.log(step=step, loss=loss.item(), lr=schedule.get_last_lr()[0])
        if (step + 1) % 25 == 0:
            error = evaluate(model, held_out, held_target)
            tracker.log(step=step, error=error)
        time.sleep(0.01)
    tracker.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
