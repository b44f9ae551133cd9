import torch
import torch.distributed as dist


class TimestepLosses:
    """Mean loss by quarter of the noise schedule, over all ranks."""

    def __init__(self, bins=4):
        self.bins = bins
        self.totals = torch.zeros(bins)
        self.counts = torch.zeros(bins)

    def update(self, t, errors):
        which = (t * self.bins).long().clamp(max=self.bins - 1)
        mine = torch.zeros(2, self.bins)
        mine[0].index_add_(0, which, errors)
        mine[1].index_add_(0, which, torch.ones_like(errors))
        everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        total = torch.stack(everyone).sum(0)
        self.totals += total[0]
        self.counts += total[1]

    def summary(self):
        return (self.totals / self.counts.clamp(min=1)).tolist()
