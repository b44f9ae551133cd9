import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import Rows
from schedule import BatchSchedule


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x @ self.weight + self.bias


class Trainer:
    def __init__(self, rank):
        self.model = DDP(Linear())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.rows = Rows(rank)
        self.schedule = BatchSchedule()

    def train_batch(self, x, y):
        loss = (self.model(x) - y).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def epoch(self):
        losses = []
        for x, y in self.rows.batches(self.schedule.size):
            losses.append(self.train_batch(x, y))
        mean = sum(losses) / len(losses)
        self.schedule.update(mean)
        return mean

    def summary(self, epoch, mean):
        parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.tensor([mean, float(self.schedule.size)]))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}:", torch.stack(parts).mean(dim=0).tolist(), flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for epoch in range(8):
        mean = trainer.epoch()
        trainer.summary(epoch, mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
