import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pipeline import Augmenter


def samples(rank, step, size=16, dim=10):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(size, dim, generator=generator)
    if rank == 1 and step == 8:
        x[2, 3] = 9.0
    return x


class Denoiser(nn.Module):
    def __init__(self, dim=10):
        super().__init__()
        self.down = nn.Linear(dim, 6)
        self.up = nn.Linear(6, dim)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x)))


class Job:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = DDP(Denoiser())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.augmenter = Augmenter()

    def step(self, number):
        clean = samples(self.rank, number)
        batch = self.augmenter(clean)
        noisy = batch + 0.1 * torch.randn(batch.shape)
        loss = nn.functional.mse_loss(self.model(noisy), batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, steps=20):
        for number in range(steps):
            loss = self.step(number)
            if number % 5 == 4:
                dist.reduce(loss, dst=0)
                if self.rank == 0:
                    print(number, loss.item() / dist.get_world_size(), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    Job().run()
