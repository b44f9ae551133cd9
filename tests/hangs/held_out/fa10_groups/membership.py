import torch
import torch.distributed as dist


class EpochGroups:
    """Ranks with a good loss share their weights; in odd epochs all ranks do."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.group = None
        self.members = list(range(world))

    def vote(self, value, epoch):
        values = [torch.zeros(1) for _ in range(self.world)]
        dist.all_gather(values, torch.tensor([value]))
        scores = torch.cat(values)
        count = self.world - 1 if epoch % 2 == 0 else self.world
        self.members = sorted(int(i) for i in scores.argsort()[:count])
        return scores

    def renew(self):
        if self.group is not None and self.group is not dist.group.WORLD:
            dist.destroy_process_group(self.group)
        self.group = None
        if self.rank in self.members:
            self.group = dist.new_group(self.members)

    def share(self, model):
        if self.group is None:
            return
        for p in model.parameters():
            dist.all_reduce(p.data, group=self.group)
            p.data /= len(self.members)
