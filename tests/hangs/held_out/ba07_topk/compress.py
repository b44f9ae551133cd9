"""Sparse gradients with error feedback."""
import torch
import torch.distributed as dist


class Compressor:
    def __init__(self, params, threshold=2e-3):
        self.params = list(params)
        self.threshold = threshold
        self.residual = [torch.zeros(p.numel()) for p in self.params]
        self.world = dist.get_world_size()
        self.sent = 0

    def select(self, i):
        dense = self.params[i].grad.flatten() + self.residual[i]
        index = (dense.abs() > self.threshold).nonzero().flatten()
        return dense, index

    def exchange_sparse(self, i, dense, index):
        values = dense[index]
        self.residual[i] = dense.clone()
        self.residual[i][index] = 0
        parts = [None] * self.world
        dist.all_gather_object(parts, (index, values))
        total = torch.zeros_like(dense)
        for other_index, other_values in parts:
            total.index_add_(0, other_index, other_values)
        self.sent += 2 * len(index)
        return total

    def exchange_dense(self, i, dense):
        self.residual[i].zero_()
        dist.all_reduce(dense)
        self.sent += dense.numel()
        return dense

    def reduce(self):
        for i, p in enumerate(self.params):
            dense, index = self.select(i)
            if 2 * len(index) > dense.numel():
                total = self.exchange_dense(i, dense)
            else:
                total = self.exchange_sparse(i, dense, index)
            p.grad.copy_(total.view_as(p) / self.world)
