"""Transformer with sequence parallelism by hand: norms, dropout and the head work on a part of each sequence."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "sp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH, STEPS = 40, 32, 4, 2, 16, 6, 3

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()
OWN = LENGTH // WORLD
STEP = 0


def gather(x):
    parts = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def scatter_sum(x, shift=0):
    """Sum over ranks; this rank's part of the sequence."""
    chunks = [c.contiguous() for c in x.chunk(WORLD, 1)]
    chunks = chunks[shift:] + chunks[:shift]  # @scatter_order
    out = torch.empty_like(chunks[0])
    dist.reduce_scatter(out, chunks)  # @scatter_order
    return out


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        return gather(x)

    @staticmethod
    def backward(ctx, grad):
        if args.mutant == "gather_slice" and ctx.name == "mlp0":
            return grad.chunk(WORLD, 1)[RANK].contiguous(), None  # @gather_slice
        return scatter_sum(grad), None  # @gather_slice


class ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shift):
        return scatter_sum(x, shift)

    @staticmethod
    def backward(ctx, grad):
        return gather(grad), None


class Part(nn.Module):
    """A linear layer of which the rank has a part of the rows or of the columns."""

    def __init__(self, n_in, n_out, dim, name="", shift=0):
        super().__init__()
        full = nn.Linear(n_in, n_out)
        self.dim, self.name, self.shift = dim, name, shift
        self.weight = nn.Parameter(full.weight.data.chunk(WORLD, dim)[RANK].clone())
        self.bias = nn.Parameter((full.bias.data.chunk(WORLD)[RANK] if dim == 0 else full.bias.data).clone())

    def forward(self, x):
        if self.dim == 0:
            return F.linear(x, self.weight, self.bias)
        return ScatterSum.apply(F.linear(x, self.weight), self.shift) + self.bias  # @scatter_order


class Dropout(nn.Module):
    """The mask is drawn for the whole sequence, so that it is the same in each layout."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        if not args.dropout:
            return x
        g = torch.Generator().manual_seed(1000 * STEP + self.number)
        keep = torch.rand(x.shape[0], LENGTH, DIM, generator=g) >= args.dropout
        first = 0 if args.mutant == "mask_slice" and self.number == 1 else RANK * OWN  # @mask_slice
        return x * keep[:, first : first + OWN] / (1 - args.dropout)  # @mask_slice


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.q, self.k, self.v = (Part(DIM, DIM, 0) for _ in range(3))
        shift = 1 if args.mutant == "scatter_order" and layer == 1 else 0
        self.proj = Part(DIM, DIM, 1, shift=shift)
        self.layer = layer

    def forward(self, x):
        x = Gather.apply(x, f"attn{self.layer}")
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, HEADS // WORLD, DIM // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM // WORLD))  # @scatter_order


class MLP(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.up, self.down, self.layer = Part(DIM, 2 * DIM, 0), Part(2 * DIM, DIM, 1), layer

    def forward(self, x):
        x = Gather.apply(x, f"mlp{self.layer}")  # @gather_slice
        return self.down(F.silu(self.up(x)))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.attn, self.drop1 = nn.LayerNorm(DIM), Attention(layer), Dropout(2 * layer)
        self.norm2, self.mlp, self.drop2 = nn.LayerNorm(DIM), MLP(layer), Dropout(2 * layer + 1)

    def forward(self, x):
        x = x + self.drop1(self.attn(self.norm1(x)))  # @scatter_order
        return x + self.drop2(self.mlp(self.norm2(x)))  # @mask_slice @gather_slice


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        first = 0 if args.mutant == "pos_offset" else RANK * OWN  # @pos_offset
        x = self.tok(tokens) + self.pos(torch.arange(first, first + tokens.shape[1]))  # @pos_offset
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


def reduce_replicated(model):
    """Parameters that are read with a part of the sequence have a part of the gradient."""
    for name, p in model.named_parameters():
        sharded = any(s in name for s in (".q.", ".k.", ".v.", ".up.", "proj.weight", "down.weight"))
        if args.mutant == "norm_skip" and name.startswith("norm."):
            continue  # @norm_skip
        if args.mutant == "bias_skip" and "down" in name:
            continue  # @bias_skip
        if not sharded:
            dist.all_reduce(p.grad)  # @norm_skip @bias_skip


def main():
    global STEP
    torch.manual_seed(1)
    model = Model().to(DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for STEP in range(STEPS):
        g = torch.Generator().manual_seed(50 + STEP)
        data = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        lengths = torch.randint(6, LENGTH + 1, (BATCH,), generator=g)
        target = data[:, 1:].masked_fill(torch.arange(LENGTH)[None] >= lengths[:, None], -100)
        own = slice(RANK * OWN, RANK * OWN + OWN)
        logits = model(data[:, :-1][:, own])
        loss = F.cross_entropy(logits.to(WIDE).flatten(0, 1), target[:, own].flatten(), reduction="sum")
        loss = loss / (target != -100).sum()
        loss.backward()
        reduce_replicated(model)
        optimizer.step()  # @norm_skip @bias_skip
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if RANK == 0:
            print(f"step {STEP} loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
