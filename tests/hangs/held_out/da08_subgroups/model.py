import torch
import torch.distributed as dist
from torch import nn


class StageModel(nn.Module):
    def __init__(self, topo, width=8):
        super().__init__()
        torch.manual_seed(topo.stage)
        self.topo = topo
        self.layer = nn.Linear(width, width)
        self.embedding = nn.Parameter(torch.ones(width)) if topo.tied else None

    def initialise(self):
        """All replicas of a stage start from the same weights."""
        first = self.topo.peers(self.topo.stage)[0]
        for p in self.layer.parameters():
            dist.broadcast(p.data, src=first, group=self.topo.dp_group)
        if self.embedding is not None:
            dist.all_reduce(self.embedding.data, group=self.topo.tied_group)

    def forward(self, x):
        y = torch.relu(self.layer(x))
        return y * self.embedding if self.embedding is not None else y
