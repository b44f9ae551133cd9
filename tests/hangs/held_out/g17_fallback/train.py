"""A rank without a batch takes part with zero weight."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from reader import BadSample, Reader


class Tally:
    def __init__(self):
        self.bad = 0

    def fetch(self, reader, step):
        try:
            return reader.read(step), 1.0
        except BadSample:
            self.bad += 1
            return torch.zeros(9, 6), 0.0


def weighted_step(model, x, weight, lr=0.05):
    loss = weight * (model(x) - x).pow(2).mean()
    model.zero_grad()
    loss.backward()
    total = torch.tensor([weight])
    dist.all_reduce(total)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.data.sub_(p.grad / max(total.item(), 1.0), alpha=lr)
    return loss.item()


def neighbours(rank, world, step):
    """Ranks also swap a running mean with a partner that changes."""
    shift = 1 + step % (world - 1)
    return (rank + shift) % world, (rank - shift) % world


def gossip(mean, rank, world, step):
    to, frm = neighbours(rank, world, step)
    other = torch.empty_like(mean)
    works = [dist.isend(mean, dst=to), dist.irecv(other, src=frm)]
    for w in works:
        w.wait()
    return (mean + other) / 2


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 6))
    reader, tally = Reader(rank), Tally()
    mean = torch.zeros(6)
    for step in range(25):
        x, weight = tally.fetch(reader, step)
        loss = weighted_step(model, x, weight)
        mean = gossip(mean.lerp(x.mean(0), 0.1), rank, world, step)
        if rank == 0 and step % 5 == 0:
            print(step, round(loss, 4), flush=True)
    dist.barrier()
    print(f"[{rank}] bad {tally.bad} mean {mean.norm():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
