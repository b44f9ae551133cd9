import json
import os

import torch
import torch.distributed as dist


class SampleWeights:
    """Weights of samples by shard, written by an earlier job, one file per rank and round."""

    def __init__(self, folder, rank, rounds):
        self.folder = folder
        self.rank = rank
        for index in range(rounds):
            self.write(index)

    def name(self, index):
        return os.path.join(self.folder, f"weights-{self.rank}-{index}.json")

    def write(self, index):
        if (self.rank, index) == (1, 2):
            return
        with open(self.name(index), "w") as f:
            json.dump([1.0 + 0.1 * ((self.rank + i + index) % 4) for i in range(8)], f)

    def load(self, index):
        with open(self.name(index)) as f:
            return torch.tensor(json.load(f))


def normalise(weights):
    """Weights of all ranks have the mean 1."""
    total = weights.sum()
    sums = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, total)
    return weights * len(sums) * len(weights) / torch.stack(sums).sum()
