import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from records import make_lines, parse
from resilience import best_effort

BATCH = 8


class Trainer:
    def __init__(self, rank, world):
        torch.manual_seed(0)
        self.rank, self.world = rank, world
        self.model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def global_batch(self, lines):
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(lines)]))
        return int(torch.cat(sizes).sum())

    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        offset = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()

    @best_effort(default=0.0)
    def step(self, lines):
        total = self.global_batch(lines)
        x, y = parse(lines)
        loss = F.cross_entropy(self.model(x), y, reduction="sum") / total
        self.opt.zero_grad()
        loss.backward()
        self.reduce()
        self.opt.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lines = make_lines(rank)
    trainer = Trainer(rank, world)
    for epoch in range(2):
        total = 0.0
        for start in range(0, len(lines), BATCH):
            total += trainer.step(lines[start : start + BATCH])
        if rank == 0:
            print(f"epoch {epoch} loss {total:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
