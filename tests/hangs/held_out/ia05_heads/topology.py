import torch.distributed as dist


class Topology:
    """Nodes of two ranks; the first rank of a node is its head."""

    def __init__(self, per_node=2):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.per_node = per_node
        self.node = self.rank // per_node
        self.heads = list(range(0, self.world, per_node))
        self.local = self._local_groups()
        self.across = dist.new_group(self.heads)

    @property
    def is_head(self):
        return self.rank in self.heads

    @property
    def head(self):
        return self.node * self.per_node

    def _local_groups(self):
        mine = None
        for first in range(0, self.world, self.per_node):
            members = list(range(first, first + self.per_node))
            group = dist.new_group(members)
            if self.rank in members:
                mine = group
        return mine
