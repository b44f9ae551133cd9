import torch.distributed as dist


class Synchronizer:
    """Reduces gradients over the rows and statistics over the columns of a grid of ranks."""

    def __init__(self, rows, cols):
        self.row = self.col = None
        rank = dist.get_rank()
        for r in range(rows):
            ranks = [r * cols + c for c in range(cols)]
            group = dist.new_group(ranks)
            self.row = group if rank in ranks else self.row
        for c in range(cols):
            ranks = [r * cols + c for r in range(rows)]
            group = dist.new_group(ranks)
            self.col = group if rank in ranks else self.col

    def gradients(self, flat):
        dist.all_reduce(flat, group=self.row)
        return flat / dist.get_world_size(self.row)

    def statistics(self, stats):
        dist.all_reduce(stats, group=self.col)
        return stats / dist.get_world_size(self.col)

    def apply(self, plan, flat, stats):
        match plan:
            case "overlap":
                stats = self.statistics(stats)
                flat = self.gradients(flat)
            case "plain" | None:
                flat = self.gradients(flat)
                stats = self.statistics(stats)
            case _:
                raise ValueError(plan)
        return flat, stats
