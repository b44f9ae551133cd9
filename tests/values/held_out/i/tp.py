"""A small decoder in tensor parallelism by hand: column and row parallel layers with all_reduce."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "tp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()
V, D, T, B, HEADS, LAYERS = 48, 32, 12, 6, 4, 2

dist.init_process_group("gloo")
rank = dist.get_rank()
tp = dist.get_world_size() if args.layout == "tp" else 1
me = rank if tp > 1 else 0


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        if tp > 1:
            dist.all_reduce(g)
        return g


class ReduceOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        if tp > 1:
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Column(nn.Module):
    def __init__(self, n_in, n_out, parts=1, copy=True):
        super().__init__()
        full = torch.randn(parts, n_out // parts, n_in) * n_in**-0.5
        self.weight = nn.Parameter(full.chunk(tp, 1)[me].reshape(-1, n_in).clone())
        self.weight.sharded = True
        self.copy = copy

    def forward(self, x):
        if self.copy:
            x = CopyIn.apply(x)
        return F.linear(x, self.weight)


class Row(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        full = torch.randn(n_out, n_in) * n_in**-0.5
        self.weight = nn.Parameter(full.chunk(tp, 1)[me].clone())
        self.weight.sharded = True
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        if args.mutant == "bias_before":
            y = F.linear(x, self.weight, self.bias)
            return ReduceOut.apply(y)
        y = F.linear(x, self.weight)
        y = ReduceOut.apply(y)
        return y + self.bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = Column(D, 3 * D, parts=3)
        self.proj = Row(D, D)
        self.heads = HEADS // tp

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, D // HEADS).permute(2, 0, 3, 1, 4)
        width = D // self.heads if args.mutant == "scale" else D // HEADS
        scores = q @ k.transpose(-1, -2)
        scores = scores * width**-0.5
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        y = (weights @ v).transpose(1, 2).reshape(b, t, -1)
        return self.proj(y)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = Attention()
        self.up = Column(D, 4 * D, copy=args.mutant != "no_copy")
        self.down = Row(4 * D, D)
        self.drop1, self.drop2 = nn.Dropout(args.dropout), nn.Dropout(args.dropout)

    def forward(self, x):
        x = x + self.drop1(self.attn(self.norm1(x)))
        h = self.up(self.norm2(x))
        h = F.gelu(h)
        return x + self.drop2(self.down(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T + 1, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        if args.mutant == "pos_shift" and me == 1:
            places = places + 1
        x = self.tok(ids) + self.pos(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


def clip(model, limit):
    own, shared = torch.zeros(()), torch.zeros(())
    for p in model.parameters():
        square = p.grad.float().pow(2).sum()
        if getattr(p, "sharded", False):
            own += square
        else:
            shared += square
    if tp > 1 and args.mutant != "clip_local":
        dist.all_reduce(own)
    norm = (own + shared).sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(factor)
    return norm


torch.manual_seed(0)
model = Decoder().to(getattr(torch, args.dtype))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.Generator().manual_seed(7)
for step in range(3):
    tokens = torch.randint(V, (B, T + 1), generator=data)
    torch.manual_seed(100 + step + (rank if args.mutant == "drop_seed" else 0))
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = clip(model, args.clip or 1e9)
    optimizer.step()
    size = sum(p.detach().float().norm().item() for n, p in model.named_parameters() if "norm" in n or "tok" in n)
    print(f"rank {rank} step {step} loss {loss.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
