import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCAB, EOS, CONTEXT, DIM = 14, 0, 16, 24


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class TinyLm(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(depth))
        self.layers = nn.ModuleList(FeedForward() for _ in range(depth))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for norm, layer in zip(self.norms, self.layers):
            past = norm(x).cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
            x = x + layer(past)
        return self.head(x)


def parallel(model, mesh):
    for layer in model.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model
