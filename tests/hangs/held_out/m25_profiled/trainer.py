import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, rank, log_every):
        torch.manual_seed(0)
        self.rank, self.log_every = rank, log_every
        self.model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.gen = torch.Generator().manual_seed(rank)
        self.window = []

    # hooks
    def before_step(self, step):
        pass

    def after_step(self, step, loss):
        self.window.append(loss)
        if step % self.log_every == 0:
            self.log(step)

    def log(self, step):
        parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.tensor([sum(self.window) / len(self.window)]))
        self.window.clear()
        if self.rank == 0:
            print(f"step {step} loss {torch.cat(parts).mean().item():.4f}", flush=True)

    def train_step(self):
        x = torch.randn(16, 8, generator=self.gen)
        loss = (self.model(x) - x.max(1, keepdim=True).values).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self, steps):
        for step in range(1, steps + 1):
            self.before_step(step)
            loss = self.train_step()
            self.after_step(step, loss)

    def finish(self):
        dist.barrier()
