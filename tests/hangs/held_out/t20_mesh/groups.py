"""Roles of the ranks: some train, others evaluate what was trained."""
from dataclasses import dataclass, field

import torch.distributed as dist


@dataclass
class Roles:
    trainers: list
    evaluators: list
    groups: dict = field(default_factory=dict)

    @classmethod
    def split(cls, world, n_evaluators):
        ranks = list(range(world))
        return cls(ranks[:-n_evaluators], ranks[-n_evaluators:])

    def setup(self):
        if dist.get_rank() not in self.trainers:
            return self
        self.groups["trainers"] = dist.new_group(self.trainers)
        self.groups["reports"] = dist.new_group(self.trainers + self.evaluators)
        return self

    def mine(self):
        return "trainers" if dist.get_rank() in self.trainers else "evaluators"
