import datetime
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from vocab import VocabCache

PHASES = {
    "pretrain": ["the cat sat on the mat", "a dog ran to the cat", "the owl saw a dog"],
    "tune": ["an owl sat on a tree", "the tree fell on the mat"],
    "review": ["the cat sat on the mat", "a dog ran to the cat", "the owl saw a dog"],
}


class BagOfWords(nn.Module):
    def __init__(self, vocab, dim=8):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.bag(ids))


class Corpus:
    def __init__(self, lines, words):
        index = {w: i for i, w in enumerate(words)}
        self.rows = [[index[w] for w in line.split()] for line in lines]

    def batch(self, step):
        row = self.rows[step % len(self.rows)]
        return torch.tensor([row[:-1]]), torch.tensor([row[-1]])


def run_phase(name, lines, cache, steps=6):
    words = cache.get(f"vocab/{name}", lines)
    corpus = Corpus(lines, words)
    torch.manual_seed(0)
    model = DDP(BagOfWords(len(words)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x, y = corpus.batch(step + dist.get_rank())
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                          timeout=datetime.timedelta(minutes=20))
    with tempfile.TemporaryDirectory(prefix="vocab-") as folder:
        cache = VocabCache(folder, store, rank)
        for name, lines in PHASES.items():
            loss = run_phase(name, lines, cache)
            dist.all_reduce(loss, op=dist.ReduceOp.MAX)
            if rank == 0:
                print(f"{name}: largest loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
