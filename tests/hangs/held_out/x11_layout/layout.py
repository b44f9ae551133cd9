import torch.distributed as dist

DEFAULT = {"train": [0, 1, 3], "eval": [2, 3], "logs": [0, 2]}


class Layout:
    """Named groups. A host may override some of them."""

    def __init__(self, overrides=None):
        self.members = dict(overrides or {})
        for name, ranks in DEFAULT.items():
            self.members.setdefault(name, ranks)
        self.groups = {}

    def build(self):
        for name, ranks in self.members.items():
            self.groups[name] = dist.new_group(ranks)
        return self

    def mine(self, name):
        return dist.get_rank() in self.members[name]


def host_overrides(rank):
    """What the host's file of settings says; hosts that evaluate as well pin their group."""
    return {"eval": [2, 3]} if rank == 3 else {}
