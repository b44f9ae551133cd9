import dataclasses
import logging
import pickle

import torch
import torch.distributed as dist

log = logging.getLogger("curriculum")


@dataclasses.dataclass
class Plan:
    epoch: int
    lengths: list
    weight: object = 1.0

    def scale(self, length):
        return self.weight(length) if callable(self.weight) else self.weight


class Curriculum:
    """Rank 0 plans an epoch, all ranks follow."""

    def __init__(self, seed=0):
        self.gen = torch.Generator().manual_seed(seed)
        self.last = Plan(-1, [4, 4, 4, 4])

    def draft(self, epoch):
        top = 4 + 2 * epoch
        lengths = torch.randint(3, top, (4,), generator=self.gen).tolist()
        if epoch < 2:
            return Plan(epoch, lengths)
        return Plan(epoch, lengths, weight=lambda n: 1.0 / n)

    def share(self, epoch):
        box = [self.draft(epoch)] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def plan(self, epoch):
        try:
            self.last = self.share(epoch)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            log.warning("epoch %d keeps the plan of the last one: %s", epoch, error)
        return self.last
