import torch
from torch import nn


class Middle(nn.Module):
    has_head = False

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def tied(self):
        return None

    def loss(self, ids):
        return self.layer(torch.sin(ids[:, None] * torch.arange(16.0))).square().mean()


class Edge(nn.Module):
    def __init__(self, has_head):
        super().__init__()
        self.has_head = has_head
        self.table = nn.Embedding(50, 16)
        self.bias = None

    def tied(self):
        return self.table.weight

    def add_bias(self, sync):
        self.bias = nn.Parameter(torch.zeros(16))
        sync.register(self)

    def loss(self, ids):
        out = self.table(ids)
        if self.bias is not None:
            out = out + self.bias
        return (out - 1).square().mean()


def build_stage(rank, world):
    torch.manual_seed(0)
    return Edge(rank == world - 1) if rank in (0, world - 1) else Middle()
