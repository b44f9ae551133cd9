import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel as DDP

from rendezvous import Announcements

EPOCHS = 8


class Experiment:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.model = DDP(nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.news = Announcements(_get_default_store(), rank)
        self.best = float("inf")

    def train_epoch(self, epoch):
        generator = torch.Generator().manual_seed(50 * epoch + self.rank)
        for _ in range(6):
            x = torch.randn(16, 5, generator=generator)
            loss = nn.functional.mse_loss(self.model(x), x.prod(1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self, epoch):
        # epoch 3 has the hard part of the curriculum
        x = torch.randn(64, 5, generator=torch.Generator().manual_seed(7))
        scale = 3.0 if epoch == 3 else 1.0 - 0.05 * epoch
        return scale * self.model.module(x).square().mean().item()

    def lead(self, epoch):
        loss = self.validate(epoch)
        if loss < self.best:
            self.best = loss
            self.news.publish("best", epoch, {"epoch": epoch, "loss": loss})

    def follow(self, epoch):
        record = self.news.receive("best", epoch)
        self.best = record["loss"]

    def run(self):
        for epoch in range(EPOCHS):
            self.train_epoch(epoch)
            if self.rank == 0:
                self.lead(epoch)
            else:
                self.follow(epoch)


def main():
    dist.init_process_group("gloo")
    experiment = Experiment(dist.get_rank())
    experiment.run()
    dist.barrier()
    if dist.get_rank() == 0:
        print("best", experiment.best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
