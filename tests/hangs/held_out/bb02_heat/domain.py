"""A bar, cut into parts of unequal lengths, with halos of one cell."""
import torch
import torch.distributed as dist


class Part:
    def __init__(self, lengths):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.cells = torch.zeros(lengths[self.rank] + 2)
        if self.rank == 0:
            self.cells[1] = 100.0

    def halos(self):
        works = []
        if self.rank > 0:
            works += [dist.isend(self.cells[1:2].clone(), self.rank - 1), dist.irecv(self.cells[:1], self.rank - 1)]
        if self.rank < self.world - 1:
            works += [dist.isend(self.cells[-2:-1].clone(), self.rank + 1),
                      dist.irecv(self.cells[-1:], self.rank + 1)]
        for work in works:
            work.wait()
        if self.rank == 0:
            self.cells[0] = self.cells[1]
        if self.rank == self.world - 1:
            self.cells[-1] = self.cells[-2]

    def advance(self, rate=0.2):
        self.halos()
        inner = self.cells[1:-1]
        change = rate * (self.cells[:-2] - 2 * inner + self.cells[2:])
        self.cells[1:-1] = inner + change
        return change.abs().max()

    @property
    def heat(self):
        total = self.cells[1:-1].sum()
        dist.all_reduce(total)
        return total.item()
