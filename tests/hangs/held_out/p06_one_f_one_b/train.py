import torch
import torch.distributed as dist
import torch.nn as nn

from comm import Link
from schedule import OneForwardOneBackward

MICRO, BATCH, DIM = 6, 4, 20


def make_stage(rank):
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))


def batches(step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(MICRO, BATCH, DIM, generator=gen)
    return list(x), list(x.flip(2))


def main():
    dist.init_process_group("gloo")
    link = Link((BATCH, DIM))
    stage = make_stage(link.rank)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    schedule = OneForwardOneBackward(link, stage, nn.functional.mse_loss, MICRO)
    dist.barrier()
    for step in range(5):
        x, y = batches(step)
        loss = schedule.run(x, y)
        optimizer.step()
        optimizer.zero_grad()
        if link.last:
            print(f"step {step}: {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
