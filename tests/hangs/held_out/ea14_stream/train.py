import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from stream import Prefetcher, Stream, make_lines


def write_shard(folder, rank):
    path = os.path.join(folder, f"shard-{rank}.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for i, line in enumerate(make_lines(rank)):
            if rank == 1 and i % 7 == 0:
                line = line.replace('"id"', '"näme": "ß", "id"')
            f.write(line)
    return path


class Position:
    """What a checkpoint knows of the stream."""

    def __init__(self):
        self.offset = 0

    def skip(self, path, records):
        """Goes forward by whole records."""
        with open(path, encoding="utf-8") as f:
            for _ in range(records):
                self.offset += len(f.readline())


class Trainer:
    def __init__(self, rank, world):
        torch.manual_seed(0)
        self.rank, self.world = rank, world
        self.model = nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x).squeeze(1), y)
        self.opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        self.model.weight.grad.copy_(flat[:4].view(1, 4))
        self.model.bias.grad.copy_(flat[4:])
        self.opt.step()

    def consume(self, path, offset, steps):
        for i, (x, y, _) in enumerate(Prefetcher(Stream(path, offset))):
            self.step(x, y)
            if i + 1 == steps:
                break


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = tempfile.mkdtemp(prefix="stream-")
    path = write_shard(folder, rank)
    trainer = Trainer(rank, world)
    position = Position()
    trainer.consume(path, position.offset, steps=10)
    position.skip(path, records=80)
    dist.barrier()
    # second part of the job, as after a restart
    trainer.consume(path, position.offset, steps=20)
    dist.barrier()
    shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
