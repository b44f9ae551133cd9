from functools import cached_property

import torch
import torch.distributed as dist


class Evaluator:
    """Precision on the validation shards; only some of the ranks have one."""

    def __init__(self, net, shard, holders):
        self.net, self.shard, self.holders = net, shard, holders
        self.best = 0.0

    @cached_property
    def group(self):
        return dist.new_group(self.holders)

    @torch.no_grad()
    def counts(self):
        x, y = self.shard
        right = (self.net(x).argmax(-1) == y).sum()
        return torch.stack([right, torch.tensor(len(y))])

    def run(self):
        counts = self.counts()
        dist.all_reduce(counts, group=self.group)
        score = (counts[0] / counts[1]).item()
        self.best = max(self.best, score)
        return score
