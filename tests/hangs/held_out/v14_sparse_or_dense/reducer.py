import torch
import torch.distributed as dist


class EmbeddingReducer:
    """Averages the gradient of an embedding, as rows if few rows are touched."""

    def __init__(self, weight, max_density=0.5, max_rows=16):
        self.weight = weight
        self.max_density = max_density
        self.max_rows = max_rows
        self.world = dist.get_world_size()

    def dense(self, grad):
        dist.all_reduce(grad)
        grad /= self.world

    def sparse(self, grad, rows):
        index = torch.full((self.max_rows,), -1, dtype=torch.long)
        index[: len(rows)] = rows
        values = torch.zeros(self.max_rows, grad.shape[1])
        values[: len(rows)] = grad[rows]
        packed = torch.cat([index[:, None].float(), values], 1)
        parts = [torch.empty_like(packed) for _ in range(self.world)]
        dist.all_gather(parts, packed)
        grad.zero_()
        for part in parts:
            part = part[part[:, 0] >= 0]
            grad.index_add_(0, part[:, 0].long(), part[:, 1:] / self.world)

    def reduce(self):
        grad = self.weight.grad
        rows = grad.abs().sum(1).nonzero().squeeze(1)
        density = len(rows) / len(grad)
        return self.sparse(grad, rows) if density < self.max_density else self.dense(grad)
