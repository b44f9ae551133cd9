import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from steps import StepRunner


class Tagger(nn.Module):
    def __init__(self, vocab=60, width=20):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 7)

    def features(self, ids):
        h = self.embed(ids)
        return torch.relu(self.mix(h.transpose(1, 2))).transpose(1, 2)

    def forward(self, ids):
        return self.head(self.features(ids))


class Sentences:
    """Batches padded to a bucket's length; the archive of the last rank has more lengths."""

    def __init__(self, rank, world):
        self.buckets = [8, 12, 16, 24] if rank < world - 1 else list(range(6, 30))
        self.gen = torch.Generator().manual_seed(rank)

    def batch(self, step):
        length = self.buckets[step % len(self.buckets)]
        ids = torch.randint(0, 60, (4, length), generator=self.gen)
        mask = torch.rand(4, length, generator=self.gen) > 0.15
        return ids, mask


def main():
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    net = Tagger()
    net.features = torch.compile(net.features, backend="eager", dynamic=False, fullgraph=True)
    model = DDP(net)
    runner = StepRunner(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    data = Sentences(rank, world)
    for step in range(60):
        loss = runner(*data.batch(step))
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
