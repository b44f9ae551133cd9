import torch
import torch.distributed as dist
from torch import nn

from data import Stream, micro
from stages import First, Last, Middle

MICRO = 4
WIDTH = 16


def build(rank):
    torch.manual_seed(rank)
    if rank == 0:
        return First(nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh()), 8, MICRO)
    if rank == 1:
        return Middle(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), WIDTH, MICRO)
    return Last(nn.Linear(WIDTH, 4), WIDTH, MICRO)


def report(step, loss):
    value = torch.tensor([loss])
    dist.broadcast(value, 2)
    if dist.get_rank() == 0:
        print(f"step {step} loss {value.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = build(rank)
    stream = Stream(steps=10)
    source = stream.targets() if rank == 2 else stream.inputs()
    for step, batch in enumerate(source):
        loss = stage.step(micro(batch, MICRO))
        report(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
