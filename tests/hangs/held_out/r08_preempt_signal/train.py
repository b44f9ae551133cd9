import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from preempt import FakeScheduler, PreemptionGuard


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.guard = PreemptionGuard()
        self.scheduler = FakeScheduler(preempted=2, at_step=9)
        self.step = 0

    def average_gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        offset = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    def train_step(self):
        generator = torch.Generator().manual_seed(100 * self.step + self.rank)
        x = torch.randn(8, 6, generator=generator)
        loss = nn.functional.mse_loss(self.model(x), x.mean(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.average_gradients()
        self.optimizer.step()
        self.step += 1

    def save(self, folder):
        dist.barrier()
        if self.rank == 0:
            torch.save(self.model.state_dict(), os.path.join(folder, "last.pt"))
        dist.barrier()

    def run(self, steps, folder):
        while self.step < steps:
            self.scheduler.tick(self.rank, self.step)
            if self.guard.requested:
                print(f"rank {self.rank}: preempted after {self.step} steps", flush=True)
                break
            self.train_step()
        self.save(folder)
        self.guard.close()


def main():
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        Trainer(dist.get_rank()).run(40, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
