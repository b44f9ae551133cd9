import torch
import torch.distributed as dist
from torch import nn

VOCAB = 300


class ShardedDecoder(nn.Module):
    """One attention block with its heads, and the vocabulary, split over the ranks."""

    def __init__(self, heads=8, head_dim=16):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.heads = heads // world + (rank < heads % world)
        self.head_dim = head_dim
        width = heads * head_dim
        local = self.heads * head_dim
        self.embed = nn.Embedding(VOCAB, width)
        self.query = nn.Linear(width, local, bias=False)
        self.key = nn.Linear(width, local, bias=False)
        self.value = nn.Linear(width, local, bias=False)
        self.output = nn.Linear(local, width, bias=False)
        self.head = nn.Linear(width, VOCAB // world, bias=False)

    def split(self, x):
        return x.view(x.shape[0], self.heads, self.head_dim).transpose(0, 1)

    def attend(self, query, keys, values):
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values)
        return self.output(mixed.transpose(0, 1).flatten(1))

    def prefill(self, tokens):
        x = self.embed(tokens)
        keys, values = self.split(self.key(x)), self.split(self.value(x))
        hidden = self.attend(self.split(self.query(x)), keys, values)
        dist.all_reduce(hidden)
        return keys.contiguous(), values.contiguous(), hidden[-1:].contiguous()

    def next_token(self, state, token):
        keys, values, context = state
        x = self.embed(token) + context
        local = self.attend(self.split(self.query(x)), keys, values)
        logits = self.head(local)
        parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, logits)
        return torch.cat(parts, dim=-1).argmax(-1)
