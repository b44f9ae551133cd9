from collections import defaultdict

import torch
import torch.distributed as dist


class ClassAccuracy:
    """Accuracy by class over the shards of one group of ranks."""

    def __init__(self, group):
        self.group = group
        self.reset()

    def reset(self):
        self.hits = defaultdict(int)
        self.seen = defaultdict(int)

    def add(self, predicted, truth):
        for p, t in zip(predicted.tolist(), truth.tolist()):
            self.seen[t] += 1
            self.hits[t] += int(p == t)

    def compute(self):
        result = {}
        for label in sorted(self.seen):
            pair = torch.tensor([self.hits[label], self.seen[label]], dtype=torch.float64)
            dist.all_reduce(pair, group=self.group)
            result[label] = (pair[0] / pair[1]).item()
        return result


def worst_class(result, world):
    """The lowest accuracy of any replica."""
    mine = torch.tensor([min(result.values())], dtype=torch.float64)
    all_ranks = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(all_ranks, mine)
    return min(t.item() for t in all_ranks)
