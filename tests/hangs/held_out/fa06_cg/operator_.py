import torch
import torch.distributed as dist


class RowBlockOperator:
    """A symmetric positive matrix, split by rows; the vector is gathered for each product."""

    def __init__(self, rank, world, n):
        gen = torch.Generator().manual_seed(3)
        a = torch.randn(n, n, generator=gen, dtype=torch.float64)
        full = a @ a.T / n + torch.eye(n, dtype=torch.float64)
        per = n // world
        self.rows = full[rank * per : (rank + 1) * per].clone()
        self.world, self.per = world, per

    def gather(self, part):
        parts = [torch.empty_like(part) for _ in range(self.world)]
        dist.all_gather(parts, part)
        return torch.cat(parts)

    def apply(self, part):
        return self.rows @ self.gather(part)


def dot(a, b):
    value = torch.dot(a, b).reshape(1)
    dist.all_reduce(value)
    return float(value)
