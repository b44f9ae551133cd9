"""Which ranks exchange what."""
import torch.distributed as dist


class Topology:
    """Rows of neighbouring tiles, and the ranks that write output, as rank 0 plans it."""

    def __init__(self, world, writers=(1, 2)):
        self.rank = dist.get_rank()
        self.world = world
        rows = [list(range(start, min(start + 2, world))) for start in range(0, world, 2)]
        self.row_ranks = [ranks for ranks in rows if len(ranks) > 1]
        self.writer_ranks = list(writers)
        self.row = None
        self.output = None

    @property
    def coordinator(self):
        return self.rank == 0

    @property
    def writes(self):
        return self.rank in self.writer_ranks

    def plan(self):
        """The coordinator prepares the group of the writers."""
        if self.coordinator:
            self.output = dist.new_group(self.writer_ranks)

    def build(self):
        self.plan()
        for ranks in self.row_ranks:
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.row = group
        return self
