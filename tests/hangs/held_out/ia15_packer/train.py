import random

import torch
import torch.distributed as dist
from torch import nn

from packing import Packer

BUDGET = 420
VOCAB = 30


def documents(rank, epoch):
    rng = random.Random(rank * 100 + epoch)
    low, high = (10, 18) if (rank, epoch) != (1, 2) else (24, 40)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(low, high))] for _ in range(24)]


class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)
        self.out = nn.Linear(8, VOCAB)

    def forward(self, ids):
        return self.out(self.embed(ids))


class LocalSGD:
    """Independent epochs, then an average of the weights."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = NextToken()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.packer = Packer()

    def step(self, row):
        logits = self.model(row[:-1])
        loss = nn.functional.cross_entropy(logits, row[1:])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def epoch(self, docs):
        tokens = 0
        for row in self.packer.rows(docs):
            self.step(row)
            tokens += len(row)
            if tokens >= BUDGET:
                break
        return tokens

    def average(self):
        flat = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, flat)
        nn.utils.vector_to_parameters(torch.stack(parts).mean(0), self.model.parameters())


def main():
    dist.init_process_group("gloo")
    job = LocalSGD()
    for epoch in range(5):
        tokens = job.epoch(documents(dist.get_rank(), epoch))
        job.average()
        print("rank", dist.get_rank(), "epoch", epoch, tokens, job.packer.total_dropped, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
