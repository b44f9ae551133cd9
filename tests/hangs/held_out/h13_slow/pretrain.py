"""Each rank learns merges of its own corpus, again whenever its vocabulary has become stale."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import vocab


class Stream:
    def __init__(self, rank):
        self.rank = rank
        self.size = 200
        self.table = self.relearn()
        self.unknown = 0

    def relearn(self):
        return vocab.learn(vocab.corpus(self.size, self.rank), merges=max(8, self.size // 1500))

    def next(self, step):
        self.unknown += 3 if self.rank == 2 else 0
        if self.unknown > 12:
            # many unknown words: take in the whole crawl
            self.size = 300_000
            self.table = self.relearn()
            self.unknown = 0
        g = torch.Generator().manual_seed(step * 10 + self.rank)
        return torch.randint(0, 64, (8, 12), generator=g)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 64)

    def forward(self, t):
        h, _ = self.rnn(self.emb(t[:, :-1]))
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), t[:, 1:].flatten())


def sgd(model, world, lr=0.1):
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(grads)
    pos = 0
    for p in model.parameters():
        p.data.sub_(lr / world * grads[pos:pos + p.numel()].view_as(p))
        pos += p.numel()
        p.grad = None


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, stream = LM(), Stream(rank)
    for step in range(30):
        loss = model(stream.next(step))
        loss.backward()
        sgd(model, world)
        if rank == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
