import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from diffusion import Denoiser, Schedule
from ema import EMA

SAMPLE_EVERY = 8


class Trainer:
    def __init__(self, rank, out):
        self.rank, self.out = rank, out
        torch.manual_seed(0)
        self.model = Denoiser()
        self.ddp = DistributedDataParallel(self.model)
        self.ema = EMA(self.model)
        self.schedule = Schedule()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        torch.manual_seed(1000 + rank)

    def step(self):
        x = torch.randn(32, 12).tanh()
        t = torch.randint(0, self.schedule.steps, (32,))
        noisy, eps = self.schedule.noise(x, t)
        loss = (self.ddp(noisy, t / self.schedule.steps) - eps).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.ema.update(self.model)
        return loss.item()

    def preview(self, step):
        with self.ema.applied(self.model) as model:
            images = self.schedule.sample(model, 4, 12)
        torch.save(images, os.path.join(self.out, f"preview-{step}.pt"))

    def fit(self, steps):
        for step in range(1, steps + 1):
            loss = self.step()
            if step % SAMPLE_EVERY == 0:
                if self.rank == 0:
                    self.preview(step)
                    print(f"step {step} loss {loss:.4f}", flush=True)
                dist.barrier()


def main():
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as out:
        Trainer(dist.get_rank(), out).fit(32)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
