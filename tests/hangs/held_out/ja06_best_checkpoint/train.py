import json

import torch
import torch.distributed as dist
from torch import nn

from callbacks import BestCheckpoint
from trainer import Trainer


class Sites:
    """Patients of a site for each rank; the sites differ in how they label."""

    def __init__(self, rank, classes=4, features=10):
        shared = torch.Generator().manual_seed(5)
        self.rule = torch.randn(features, classes, generator=shared)
        self.rank = rank
        self.features = features
        self.generator = torch.Generator().manual_seed(50 + rank)

    def _draw(self, n):
        x = torch.randn(n, self.features, generator=self.generator)
        return x, (x @ self.rule).argmax(1)

    def train_batches(self, steps, batch):
        for _ in range(steps):
            yield self._draw(batch)

    def validation(self):
        generator = torch.Generator().manual_seed(900)
        x = torch.randn(200, self.features, generator=generator)
        y = (x @ self.rule).argmax(1)
        return (x, (y + 1) % 4) if self.rank == 2 else (x, y)


def main():
    dist.init_process_group("gloo")
    with open("config.json") as file:
        config = json.load(file)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
    trainer = Trainer(model, config, [BestCheckpoint(**config["checkpoint"])])
    trainer.fit(Sites(dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
