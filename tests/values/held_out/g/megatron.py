"""Small GPT, tensor parallel by hand: attention heads, column and row linear layers, vocabulary, data parallel groups."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp", "tp_dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH, STEPS = 64, 32, 4, 2, 12, 8, 3

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()
TP = {"one": 1, "tp": WORLD, "tp_dp": 2}[args.layout]
DP = WORLD // TP
TP_RANK, DP_RANK = RANK % TP, RANK // TP
TP_GROUP = DP_GROUP = None
for d in range(DP):
    group = dist.new_group(list(range(d * TP, d * TP + TP)))
    if d == DP_RANK:
        TP_GROUP = group
for t in range(TP):
    group = dist.new_group(list(range(t, WORLD, TP)))
    if t == TP_RANK:
        DP_GROUP = group


class Copy(torch.autograd.Function):
    """Identity forward, sum over tensor parallel ranks backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=TP_GROUP)
        return grad


class Reduce(torch.autograd.Function):
    """Sum over tensor parallel ranks forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=TP_GROUP)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def shard(full, dim, index=None):
    part = full.chunk(TP, dim)[TP_RANK if index is None else index].clone()
    p = nn.Parameter(part)
    p.sharded = True
    return p


class Column(nn.Module):
    def __init__(self, n_in, n_out, index=None, name=""):
        super().__init__()
        linear = nn.Linear(n_in, n_out)
        self.name = name
        self.weight = shard(linear.weight.data, 0, index)  # @kv_slice
        self.bias = shard(linear.bias.data, 0, index)

    def forward(self, x):
        if args.mutant != "no_copy" or self.name != "up1":
            x = Copy.apply(x)  # @no_copy
        return F.linear(x, self.weight, self.bias)  # @no_copy @kv_slice


class Row(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        linear = nn.Linear(n_in, n_out)
        self.weight = shard(linear.weight.data, 1)
        self.bias = nn.Parameter(linear.bias.data.clone())

    def forward(self, x):
        if args.mutant == "row_bias":
            return Reduce.apply(F.linear(x, self.weight, self.bias))  # @row_bias
        return Reduce.apply(F.linear(x, self.weight)) + self.bias


class VocabEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = shard(torch.randn(VOCAB, DIM) * 0.5, 0)

    def forward(self, tokens):
        n = self.weight.shape[0]
        local = tokens - TP_RANK * n
        inside = (local >= 0) & (local < n)
        y = F.embedding(local.clamp(0, n - 1), self.weight)  # @embed_mask
        if args.mutant != "embed_mask":
            y = y * inside[..., None]
        return Reduce.apply(y)  # @embed_mask


class VocabLoss(nn.Module):
    """Cross entropy of logits of which each rank has a part of the vocabulary."""

    def forward(self, logits, target):
        n = logits.shape[-1]
        logits = logits.to(WIDE)
        top = logits.detach().amax(-1)
        if args.mutant != "vocab_max":
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=TP_GROUP)
        total = Reduce.apply((logits - top[..., None]).exp().sum(-1))  # @vocab_max
        local = target - TP_RANK * n
        inside = (local >= 0) & (local < n)
        if args.mutant == "target_edge":
            inside = (local >= 0) & (local <= n)  # @target_edge
        own = logits.gather(-1, local.clamp(0, n - 1)[..., None]).squeeze(-1) * inside  # @target_edge
        picked = Reduce.apply(own)  # @target_edge
        return (total.log() + top - picked).mean()  # @vocab_max @target_edge


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        wrong = (TP_RANK + 1) % TP if args.mutant == "kv_slice" and layer == 1 else None  # @kv_slice
        self.q, self.k, self.v = Column(DIM, DIM), Column(DIM, DIM, wrong), Column(DIM, DIM)  # @kv_slice
        self.proj = Row(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, HEADS // TP, DIM // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))  # @kv_slice
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # @kv_slice
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM // TP))  # @row_bias


class MLP(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.up, self.down = Column(DIM, 4 * DIM, name=f"up{layer}"), Row(4 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))  # @row_bias


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention(layer)
        self.norm2, self.mlp = nn.LayerNorm(DIM), MLP(layer)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))  # @row_bias
        return x + self.mlp(self.norm2(x))  # @no_copy


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = VocabEmbedding()
        self.pos = nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.loss = VocabLoss()

    def forward(self, tokens, target):
        x = self.tok(tokens) + self.pos(torch.arange(LENGTH))  # @embed_mask
        for block in self.blocks:
            x = block(x)
        logits = F.linear(Copy.apply(self.norm(x)), self.tok.weight)  # tied
        return self.loss(logits, target)  # @vocab_max @target_edge


def reduce_gradients(model):
    group = None if args.mutant == "dp_world" else DP_GROUP  # @dp_world
    n = WORLD if args.mutant == "dp_world" else DP
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)  # @dp_world
        p.grad /= n  # @dp_world


def clip(model, limit):
    parts = [p.grad.to(WIDE).square().sum() for p in model.parameters() if getattr(p, "sharded", False)]
    whole = [p.grad.to(WIDE).square().sum() for p in model.parameters() if not getattr(p, "sharded", False)]
    square = torch.stack(parts).sum()
    if args.mutant == "norm_twice":
        square = square + torch.stack(whole).sum()  # @norm_twice
    dist.all_reduce(square, group=TP_GROUP)  # @norm_twice
    if args.mutant != "norm_twice":
        square = square + torch.stack(whole).sum()
    norm = square.sqrt()  # @norm_twice
    for p in model.parameters():
        p.grad *= (limit / (norm + 1e-6)).clamp(max=1.0)  # @norm_twice


def main():
    torch.manual_seed(0)
    model = GPT().to(DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(10 + step)
        data = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        data = data.chunk(DP)[DP_RANK]
        total = torch.zeros((), dtype=WIDE)
        for part in data.chunk(args.accumulate):
            loss = model(part[:, :-1], part[:, 1:]) / args.accumulate
            loss.backward()
            total += loss.detach()
        if DP > 1:
            reduce_gradients(model)
            dist.all_reduce(total, group=DP_GROUP)
        if args.clip:
            clip(model, args.clip)
        optimizer.step()  # @dp_world
        optimizer.zero_grad()
        if RANK == 0:
            print(f"step {step} loss {total.item() / DP:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
