import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from shards import ShardCache

BOOKS = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs", "sphinx of black quartz judge my vow"]
PLAN = [0, 1, 2, 1, 0]


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(32, 8)
        self.out = nn.Linear(8, 32)

    def forward(self, ids):
        return self.out(self.embed(ids))


def share_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train_epoch(model, ids, rank, steps=4):
    for step in range(steps):
        start = (rank * 5 + step * 3) % (len(ids) - 9)
        x, y = ids[start:start + 8], ids[start + 1:start + 9]
        loss = nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        share_gradients(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        cache = ShardCache(_get_default_store(), rank, folder)
        model = CharModel()
        for epoch, book in enumerate(PLAN):
            ids = cache.fetch(epoch, BOOKS[book])
            loss = train_epoch(model, ids, rank)
            if rank == 0:
                print(f"epoch {epoch} loss {loss:.4f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
