import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from prefetch import Prefetcher
from textdata import TokenCache, Tokenizer, corpus


class Bigram(nn.Module):
    def __init__(self, vocabulary, dim=16):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)
        self.out = nn.Linear(dim, vocabulary)

    def forward(self, ids):
        return self.out(self.table(ids))


def build_tokenizer(rank):
    """The vocabulary of rank 0's documents, for everyone."""
    box = [None]
    if rank == 0:
        box = [[w for _, text in corpus(0) for w in text.split()]]
    dist.broadcast_object_list(box, src=0)
    return Tokenizer(box[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tokenizer = build_tokenizer(rank)
    model = DistributedDataParallel(Bigram(len(tokenizer.ids)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with tempfile.TemporaryDirectory() as folder:
        cache = TokenCache(folder, tokenizer)
        for epoch in range(2):
            for ids in Prefetcher(corpus(rank), cache):
                loss = F.cross_entropy(model(ids[:-1]), ids[1:])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if rank == 0:
                print("epoch", epoch, "loss", round(loss.item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
