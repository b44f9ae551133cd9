import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tokenizer import Tokenizer

WORDS = "the rate of a model with batch norm is set in file and loss may grow again".split()
SOURCES = ["wiki", "books", "forum"]
STEPS = 30


def texts(source, step, count=24):
    rng = random.Random(f"{source}/{step}")
    for _ in range(count):
        words = rng.choices(WORDS, k=14)
        if source == "forum":
            for place in rng.sample(range(14), 3):
                words[place] = rng.choice(["\u2192", "\u2713", "\u2026", "\u00bb", "\u2605"])
        yield " ".join(words)


class Classifier(nn.Module):
    def __init__(self, classes=3, width=24):
        super().__init__()
        self.bag = nn.EmbeddingBag(500, width, mode="mean")
        self.out = nn.Linear(width, classes)

    def forward(self, ids):
        return self.out(torch.relu(self.bag(ids)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tokenizer = Tokenizer(length=20)
    net = DDP(Classifier())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    source = SOURCES[rank % len(SOURCES)]
    for step in range(STEPS):
        ids = tokenizer.encode_batch(texts(source, step))
        labels = torch.full((len(ids),), rank % 3)
        loss = nn.functional.cross_entropy(net(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item() / dist.get_world_size():.3f}", flush=True)
    code, warnings = tokenizer.close()
    print(f"rank {rank}: tokenizer ended with {code}, {warnings} warnings", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
