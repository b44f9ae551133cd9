import json
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from index import IndexBuilder, fetch


class Corpus:
    def __init__(self, count=96):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(count, 6, generator=generator)
        self.y = self.x.prod(1, keepdim=True).sign()

    def __len__(self):
        return len(self.x)

    def batches(self, index, rank, world, size=8):
        mine = index[rank::world]
        for start in range(0, len(mine) - size + 1, size):
            rows = mine[start:start + size]
            yield self.x[rows], self.y[rows]


def get_index(store, builder, epoch, count):
    if builder is not None:
        builder.publish(epoch, count)
    return json.loads(fetch(store, epoch))


def train(model, optimizer, batches):
    total = torch.zeros(1)
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    torch.manual_seed(0)
    corpus = Corpus()
    model = DDP(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    builder = IndexBuilder(tempfile.mkdtemp(prefix="index-"), store) if rank == 0 else None
    for epoch in range(4):
        index = get_index(store, builder, epoch, len(corpus))
        total = train(model, optimizer, corpus.batches(index, rank, world))
        if rank == 0:
            print(f"epoch {epoch}: {total:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
