"""Token-budgeted gradient accumulation with DDP."""
import contextlib
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = 50
BUDGET = 200
REPORT_EVERY = 12


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 16)
        self.out = nn.Linear(16, VOCAB)

    def forward(self, tokens):
        return self.out(self.emb(tokens))


def documents(rank):
    """Documents of one crawl each; those of the last crawl get longer over time."""
    rng = random.Random(17)
    n = 0
    while True:
        length = rng.randint(45, 55)
        if rank == dist.get_world_size() - 1 and n > 14:
            length *= 2
        n += 1
        yield torch.randint(0, VOCAB, (1, length))


class Accumulator:
    def __init__(self, model, opt):
        self.model = model
        self.opt = opt
        self.tokens = 0
        self.updates = 0

    def micro(self, doc):
        self.tokens += doc.numel()
        full = self.tokens >= BUDGET
        ctx = contextlib.nullcontext() if full else self.model.no_sync()
        with ctx:
            loss = nn.functional.cross_entropy(self.model(doc).flatten(0, 1), doc.flatten())
            (loss / 4).backward()
        if full:
            self.opt.step()
            self.opt.zero_grad()
            self.tokens = 0
            self.updates += 1
        return loss.detach()


def report(losses, micro):
    mean = torch.stack(losses).mean().reshape(1)
    out = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(out, mean)
    if dist.get_rank() == 0:
        print(micro, [round(v.item(), 3) for v in out], flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    model = DDP(Tagger())
    acc = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for micro, doc in zip(range(1, 121), documents(dist.get_rank())):
        losses.append(acc.micro(doc))
        if micro % REPORT_EVERY == 0:
            report(losses, micro)
            losses.clear()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
