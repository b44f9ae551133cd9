"""Llama-like decoder, tensor parallel by hand: grouped queries, fused gate and up, functions and hooks only."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()

VOCAB, DIM, HEADS, KV, HEAD, INNER, LAYERS, BATCH, LENGTH = 96, 64, 8, 2, 8, 96, 3, 4, 12
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
TP = WORLD if args.layout == "tp" else 1
DTYPE = getattr(torch, args.dtype)
KV_COPIES = max(1, TP // KV)  # ranks that hold the same head of keys and values
kv_groups = [dist.new_group(range(i, i + KV_COPIES)) for i in range(0, TP, KV_COPIES)]
kv_group = kv_groups[RANK // KV_COPIES]


def column_input(x):
    """The identity, whose gradient is summed over the ranks."""
    if TP == 1 or not x.requires_grad:
        return x

    def reduce(gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)  # @kv_raw
        return gradient

    y = x.view_as(x)
    y.register_hook(reduce)
    return y


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)  # @bias_early
        return x

    @staticmethod
    def backward(ctx, gradient):
        if args.mutant == "sum_backward":
            gradient = gradient.clone()
            dist.all_reduce(gradient)  # @sum_backward
        return gradient


def row_output(x):
    return x if TP == 1 else SumOverRanks.apply(x)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class RowLinear(nn.Module):
    def __init__(self, inputs, outputs, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x):
        if self.bias is not None and args.mutant == "bias_early":
            return row_output(F.linear(x, self.weight, self.bias))  # @bias_early
        y = row_output(F.linear(x, self.weight))  # @sum_backward
        return y if self.bias is None else y + self.bias


def rotate(x):
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.q_proj = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(DIM, KV * HEAD, bias=False)
        self.v_proj = nn.Linear(DIM, KV * HEAD, bias=False)
        self.o_proj = RowLinear(HEADS * HEAD, DIM, bias=True)

    def forward(self, x):
        batch, length, _ = x.shape
        shared = column_input(x)
        other = x if args.mutant == "kv_raw" and self.index == 1 else shared  # @kv_raw
        q = rotate(self.q_proj(shared).view(batch, length, -1, HEAD).transpose(1, 2))
        k = rotate(self.k_proj(other).view(batch, length, -1, HEAD).transpose(1, 2))  # @kv_raw
        v = self.v_proj(other).view(batch, length, -1, HEAD).transpose(1, 2)  # @kv_raw
        repeat = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        scores = q @ k.transpose(-1, -2) / HEAD**0.5
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(DIM, 2 * INNER, bias=False)
        self.down = RowLinear(INNER, DIM)

    def forward(self, x):
        gate, up = self.gate_up(column_input(x)).chunk(2, -1)  # @fused_split
        return self.down(F.silu(gate) * up)  # @fused_split


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm1, self.attn = RMSNorm(DIM), Attention(index)
        self.norm2, self.mlp = RMSNorm(DIM), GatedMLP()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        return self.head(self.norm(x))


def part(name, value):
    """This rank's part of a parameter."""
    if "q_proj" in name:
        return value.chunk(TP, 0)[RANK]
    if "k_proj" in name or "v_proj" in name:
        return value.chunk(TP // KV_COPIES, 0)[RANK // KV_COPIES]
    if "gate_up" in name:
        if args.mutant == "fused_split":
            return value.chunk(TP, 0)[RANK]  # @fused_split
        gate, up = value.chunk(2, 0)
        return torch.cat([gate.chunk(TP, 0)[RANK], up.chunk(TP, 0)[RANK]])
    if "o_proj.weight" in name or "down.weight" in name:
        return value.chunk(TP, 1)[RANK]
    return value


torch.manual_seed(11)
model = Decoder().to(DTYPE)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if TP > 1:
            parameter.data = part(name, parameter.data).clone()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.1)

for step in range(3):
    data = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(50 + step))
    logits = model(data[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).to(torch.promote_types(DTYPE, torch.float32)), data[:, 1:].flatten())
    loss.backward()
    if KV_COPIES > 1 and args.mutant != "kv_copies":
        for name, parameter in model.named_parameters():
            if "k_proj" in name or "v_proj" in name:
                dist.all_reduce(parameter.grad, group=kv_group)  # @kv_copies
    optimizer.step()  # @kv_copies
    totals = torch.zeros(2, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        whole = parameter.dim() == 1 or "embed" in name or "head" in name
        copies = TP if whole else KV_COPIES if "k_proj" in name or "v_proj" in name else 1
        totals[0] += parameter.detach().double().abs().sum() / copies
        totals[1] += parameter.grad.double().abs().sum() / copies
    if TP > 1:
        dist.all_reduce(totals)
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {loss.item():.7f} sum {totals[0].item():.7f} grad {totals[1].item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
