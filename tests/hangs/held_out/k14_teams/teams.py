import torch
import torch.distributed as dist

MEMBERS = {"text": [0, 1], "image": [2, 3]}


class Teams:
    def __init__(self):
        self.groups = {}
        for name, members in MEMBERS.items():
            self.groups[name] = dist.new_group(members)

    def share(self, kind, values):
        """Mean over the team that works on `kind`."""
        group = self.groups.get(kind)
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total / dist.get_world_size(group)
