"""Curriculum: samples are sorted by difficulty over all ranks, then trained on."""
import torch
import torch.distributed as dist
from torch import nn

from exchange import exchange, split

PER_RANK = 60


def difficulties(epoch, rank):
    gen = torch.Generator().manual_seed(17 * epoch + rank)
    scores = torch.rand(PER_RANK, generator=gen)
    if epoch == 2 and rank == 1:
        scores *= 0.3
    return scores


def find_splitters(values, world, oversample=8):
    picks = values[torch.linspace(0, len(values) - 1, oversample).long()]
    parts = [torch.empty(oversample) for _ in range(world)]
    dist.all_gather(parts, picks)
    pool = torch.cat(parts).sort().values
    at = [len(pool) * (i + 1) // world for i in range(world - 1)]
    return pool[at]


def sample_sort(values):
    values = values.sort().values
    splitters = find_splitters(values, dist.get_world_size())
    return exchange(split(values, splitters)).sort().values


def check_total(values):
    total = torch.tensor([len(values)])
    dist.all_reduce(total)
    if int(total) != PER_RANK * dist.get_world_size():
        raise RuntimeError(f"lost samples: {int(total)}")


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def epoch(self, values):
        x = values.unsqueeze(1)
        loss = (self.model(x) - (3 * x).sin()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
        self.optimizer.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    for epoch in range(6):
        values = sample_sort(difficulties(epoch, dist.get_rank()))
        check_total(values)
        loss = trainer.epoch(values)
        if dist.get_rank() == 0:
            print(epoch, loss, len(values), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
