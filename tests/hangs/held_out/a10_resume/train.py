import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from state import RankStates

SAVE_EVERY, EVAL_EVERY = 3, 4


class Job:
    def __init__(self, rank, folder):
        torch.manual_seed(0)
        self.rank = rank
        self.model = nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 2))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.states = RankStates(folder, rank)
        self.gen = torch.Generator().manual_seed(50 + rank)

    def batch(self):
        x = torch.randn(24, 4, generator=self.gen)
        return x, (x.sum(1) > 0).long()

    def step(self):
        x, y = self.batch()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(self.model.parameters()) - 0.05 * flat / dist.get_world_size(),
            self.model.parameters())
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        x, y = self.batch()
        hits = (self.model(x).argmax(1) == y).float().mean().reshape(1)
        parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, hits)
        return torch.cat(parts).mean().item()

    def run(self, start, stop):
        for step in range(start, stop):
            loss = self.step()
            if (step + 1) % SAVE_EVERY == 0:
                self.states.save(step + 1, self.model, self.opt)
            if (step + 1) % EVAL_EVERY == 0:
                acc = self.evaluate()
                if self.rank == 0:
                    print(f"step {step + 1} loss {loss:.3f} acc {acc:.2f}", flush=True)


def disk_full(path):
    with open(path, "r+b") as f:
        f.truncate(os.path.getsize(path) // 2)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        first = Job(rank, folder)
        first.run(0, 12)
        if rank == 2:
            disk_full(first.states.name(12))
        dist.barrier()
        again = Job(rank, folder)
        start = again.states.load_latest(again.model, again.opt)
        again.run(start, 40)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
