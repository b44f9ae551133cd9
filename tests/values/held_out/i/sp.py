"""A small decoder in Megatron's sequence parallelism by hand: tensors are [sequence, batch, width]."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "sp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()
V, D, T, B, HEADS, LAYERS = 40, 32, 16, 4, 4, 2

dist.init_process_group("gloo")
rank = dist.get_rank()
n = dist.get_world_size() if args.layout == "sp" else 1
me = rank if n > 1 else 0
rows = T // n


def gather(x):
    if n == 1:
        return x
    out = x.new_empty(n * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous())
    return out


def scatter_sum(x):
    if n == 1:
        return x
    x = x.contiguous().clone()
    dist.all_reduce(x)
    part = (me + 1) % n if args.mutant == "wrong_part" else me
    return x.chunk(n, 0)[part].clone()


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, reduce):
        ctx.reduce = reduce
        return gather(x)

    @staticmethod
    def backward(ctx, g):
        if ctx.reduce:
            return scatter_sum(g), None
        return g.chunk(n, 0)[me].clone(), None


class ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scatter_sum(x)

    @staticmethod
    def backward(ctx, g):
        return gather(g)


class Column(nn.Module):
    def __init__(self, n_in, n_out, parts=1):
        super().__init__()
        full = torch.randn(parts, n_out // parts, n_in) * n_in**-0.5
        self.weight = nn.Parameter(full.chunk(n, 1)[me].reshape(-1, n_in).clone())

    def forward(self, x):
        x = GatherSequence.apply(x, args.mutant != "gather_slice")
        return F.linear(x, self.weight)


class Row(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        full = torch.randn(n_out, n_in) * n_in**-0.5
        self.weight = nn.Parameter(full.chunk(n, 1)[me].clone())
        self.bias = nn.Parameter(torch.randn(n_out) * 0.1)

    def forward(self, x):
        x = F.linear(x, self.weight)
        x = ScatterSum.apply(x)
        return x + self.bias


class Dropout(nn.Module):
    """Draws the mask of the whole sequence, and takes its own part."""

    def forward(self, x):
        if not args.dropout:
            return x
        size = x.shape if args.mutant == "mask_local" else (T, *x.shape[1:])
        keep = torch.rand(size) >= args.dropout
        if len(keep) == T:
            keep = keep.chunk(n, 0)[me]
        return x * keep / (1 - args.dropout)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = Column(D, 3 * D, 3), Row(D, D)
        self.up, self.down = Column(D, 2 * D), Row(2 * D, D)
        self.drop1, self.drop2 = Dropout(), Dropout()

    def forward(self, x):
        qkv = self.qkv(self.norm1(x))
        q, k, v = qkv.view(T, B, 3, HEADS // n, D // HEADS).permute(2, 1, 3, 0, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.proj(y.permute(2, 0, 1, 3).reshape(T, B, -1))
        x = x + self.drop1(y)
        y = self.down(F.silu(self.up(self.norm2(x))))
        return x + self.drop2(y)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        start = 0 if args.mutant == "pos_start" else me * rows
        x = self.tok(ids.chunk(n, 0)[me])
        x = x + self.pos(torch.arange(start, start + rows)).unsqueeze(1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        x = GatherSequence.apply(self.norm(x), False)
        return self.head(x)


def synchronize(model):
    """Parameters that each rank uses for its part of the sequence."""
    for name, p in model.named_parameters():
        if args.mutant == "norm_sync" and "norm" in name:
            continue
        if any(word in name for word in ("norm", "bias", "tok", "pos")):
            dist.all_reduce(p.grad)


def norm_of(model):
    total = torch.zeros(())
    for name, p in model.named_parameters():
        square = p.grad.float().pow(2).sum()
        whole = any(word in name for word in ("norm", "bias", "tok", "pos", "head"))
        total += square / n if whole else square
    if n > 1:
        dist.all_reduce(total)
    return total.sqrt()


torch.manual_seed(0)
model = Decoder().to(getattr(torch, args.dtype))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.Generator().manual_seed(11)
for step in range(3):
    tokens = torch.randint(V, (T + 1, B), generator=data)
    torch.manual_seed(100 + step)
    logits = model(tokens[:-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    if n > 1:
        synchronize(model)
    norm = norm_of(model)
    if args.clip:
        for p in model.parameters():
            p.grad.mul_((args.clip / norm).clamp(max=1.0))
    optimizer.step()
    size = sum(p.detach().float().norm().item() for k, p in model.named_parameters() if "norm" in k or "tok" in k)
    print(f"rank {rank} step {step} loss {loss.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
