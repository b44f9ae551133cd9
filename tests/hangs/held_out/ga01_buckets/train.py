import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import Sentences, TokenBudgetSampler, collate


class Tagger(nn.Module):
    def __init__(self, vocab=50, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        _, h = self.rnn(self.embed(x))
        return self.head(h[-1])


class Trainer:
    def __init__(self, model, loader, sampler):
        self.model = model
        self.loader = loader
        self.sampler = sampler
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.seen = 0

    def step(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen += x.shape[0]
        return loss.item()

    def epoch(self, number):
        self.sampler.set_epoch(number)
        losses = []
        for x, y in self.loader:
            losses.append(self.step(x, y))
        return sum(losses) / len(losses)

    def summary(self, loss):
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, {"loss": loss, "seen": self.seen})
        return rows


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Sentences()
    sampler = TokenBudgetSampler(data.lengths, 128, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=1)
    trainer = Trainer(DDP(Tagger()), loader, sampler)
    for number in range(3):
        loss = trainer.epoch(number)
        rows = trainer.summary(loss)
        if rank == 0:
            print("epoch", number, rows, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
