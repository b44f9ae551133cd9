import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from schedule import PlateauSchedule


class Trainer:
    def __init__(self, rank, world):
        torch.manual_seed(0)
        self.rank, self.world = rank, world
        self.model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = PlateauSchedule(self.opt)
        self.gen = torch.Generator().manual_seed(rank)
        self.best_path = os.path.join(tempfile.gettempdir(), f"plateau-{os.getpid()}.pt")

    def data(self, n):
        x = torch.randn(n, 5, generator=self.gen)
        return x, torch.randn(n, 1, generator=self.gen)   # pure noise: a plateau soon

    def train_epoch(self, steps=5):
        for _ in range(steps):
            x, y = self.data(16)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= self.world
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        x, y = self.data(200)
        loss = nn.functional.mse_loss(self.model(x), y).reshape(1)
        parts = [torch.zeros(1) for _ in range(self.world)]
        dist.all_gather(parts, loss)
        return torch.cat(parts).mean().item()

    def keep_best(self, value):
        torch.save(self.model.state_dict(), self.best_path)
        self.schedule.best = value

    def fit(self, epochs=60):
        for epoch in range(epochs):
            self.train_epoch()
            value = self.validate()
            self.schedule.step(value)
            if self.rank == 0 and self.schedule.improved(value):
                self.keep_best(value)
            if self.schedule.exhausted:
                break
        return epoch

    def finish(self):
        """All ranks go on with the best weights."""
        box = [torch.load(self.best_path) if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        self.model.load_state_dict(box[0])
        if self.rank == 0:
            os.remove(self.best_path)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank(), dist.get_world_size())
    last = trainer.fit()
    print(f"rank {trainer.rank} stopped after epoch {last}", flush=True)
    trainer.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
