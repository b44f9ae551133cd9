import torch
import torch.distributed as dist


class Aggregator:
    """Windows of latencies over all ranks."""

    def __init__(self, settings):
        self.reports = settings["reports"]
        self.recent = []
        self.totals = torch.zeros(3, dtype=torch.float64)

    def add(self, latencies):
        window = torch.tensor([latencies.numel(), latencies.sum(), latencies.square().sum()], dtype=torch.float64)
        dist.all_reduce(window)
        self.totals += window
        self.recent.append(latencies)

    def quantiles(self):
        mine = torch.cat(self.recent).quantile(torch.tensor([0.5, 0.9, 0.99]))
        all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_ranks, mine)
        return torch.stack(all_ranks).mean(0).tolist()

    def report(self, number):
        if (number + 1) % self.reports["every"]:
            return None
        count, total, squares = self.totals.tolist()
        result = {"mean": total / count, "std": (squares / count - (total / count) ** 2) ** 0.5}
        if self.reports["quantiles"]:
            result["quantiles"] = self.quantiles()
        self.recent.clear()
        return result
