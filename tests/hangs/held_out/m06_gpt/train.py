"""A small character model; rank 0 encodes the corpus, the others read its files."""
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from encode import build_split

CACHE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cache")


class CharModel(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.mix(self.emb(ids))[0])


def wait_for(path, poll=0.2):
    while not os.path.exists(path):
        time.sleep(poll)


def prepare(split, rank):
    done = os.path.join(CACHE, split + ".done")
    if rank == 0:
        build_split(split, CACHE)
        open(done, "w").close()
    else:
        wait_for(done)
    return torch.load(os.path.join(CACHE, split + ".pt"))


def main():
    rank = int(os.environ["RANK"])
    if rank == 0:
        os.makedirs(CACHE, exist_ok=True)
        for name in os.listdir(CACHE):
            os.remove(os.path.join(CACHE, name))
    dist.init_process_group("gloo")
    dist.barrier()
    data = {split: prepare(split, rank) for split in ("train", "valid", "test")}
    torch.manual_seed(0)
    model = DDP(CharModel(64))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(20):
        ids = data["train"][torch.randint(len(data["train"]) - 33, (8, 1), generator=g) + torch.arange(33)]
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
