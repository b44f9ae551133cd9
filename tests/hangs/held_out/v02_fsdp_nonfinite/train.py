import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import build

DIM = 16
BATCH = 8


class SensorStream:
    """Windows of a sensor; targets are log ratios of two readings."""

    def __init__(self, rank, steps):
        self.gen = torch.Generator().manual_seed(7 + rank)
        self.rank = rank
        self.steps = steps

    def __iter__(self):
        for i in range(self.steps):
            x = torch.randn(BATCH, DIM, generator=self.gen)
            a = torch.rand(BATCH, generator=self.gen) + 0.1
            b = torch.rand(BATCH, generator=self.gen) + 0.1
            if self.rank == 2 and i == 4:
                b[3] = 0.0
            yield x, torch.log(a / b)


class SkipCounter:
    def __init__(self):
        self.skipped = 0

    def bad(self, value):
        if math.isfinite(value):
            return False
        self.skipped += 1
        return True


def train(model, stream, rank):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    counter = SkipCounter()
    history = []
    for step, (x, y) in enumerate(stream):
        pred = model(x)
        loss = F.mse_loss(pred, y)
        if counter.bad(loss.item()):
            print(f"rank {rank} step {step}: loss is not finite, skipped", flush=True)
            opt.zero_grad()
            continue
        loss.backward()
        opt.step()
        opt.zero_grad()
        history.append(loss.item())
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return history, counter.skipped


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(DIM, world)
    history, skipped = train(model, SensorStream(rank, 12), rank)
    gathered = [None] * world
    dist.all_gather_object(gathered, (history[-1], skipped))
    if rank == 0:
        print("final", gathered)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
