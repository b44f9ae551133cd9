import torch
import torch.distributed as dist


class KFold:
    def __init__(self, n, k, seed=0):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        self.parts = order.chunk(k)
        self.k = k

    def split(self, fold):
        train = torch.cat([p for i, p in enumerate(self.parts) if i != fold])
        return train, self.parts[fold]


class FoldTeam:
    """The rank `fold % world` validates, all others train."""

    def __init__(self, fold):
        world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.validator = fold % world
        self.trainers = [r for r in range(world) if r != self.validator]
        self.group = None
        if self.rank in self.trainers:
            self.group = dist.new_group(self.trainers)

    @property
    def trains(self):
        return self.group is not None

    @property
    def leader(self):
        return self.trainers[0]
