import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import corpus
from budget import TimeBudget

VOCABULARY = 64


class TinyLM(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.head(hidden)


class Trainer:
    def __init__(self, model, optimizer, data, minutes):
        self.budget = TimeBudget(minutes * 60)
        self.data = data
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(model)
        self.optimizer = optimizer
        self.loss_fn = nn.CrossEntropyLoss()
        self.steps = 0
        self.running = 0.0

    def step(self, tokens, targets):
        logits = self.model(tokens)
        loss = self.loss_fn(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, max_steps):
        generator = torch.Generator().manual_seed(self.rank)
        for tokens, targets in self.data.windows(8, generator):
            loss = self.step(tokens, targets)
            self.running = 0.9 * self.running + 0.1 * loss
            self.steps += 1
            time.sleep(0.04)
            if self.steps >= max_steps or self.budget.exhausted():
                break
        self.finish()

    def finish(self):
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), "last.pt")
        summary = [None] * dist.get_world_size()
        dist.all_gather_object(summary, {"steps": self.steps, "loss": self.running})
        if self.rank == 0:
            for rank, row in enumerate(summary):
                print(f"rank {rank}: {row['steps']} steps, loss {row['loss']:.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = corpus.load(int(os.environ["LOCAL_RANK"]), VOCABULARY)
    trainer = Trainer(model, optimizer, data, minutes=float(os.environ.get("BUDGET_MINUTES", "0.08")))
    trainer.fit(max_steps=5_000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
