"""Regression on tables: gradients in flat buckets by hand, or optimizer states divided between ranks (ZeRO-1)."""
import argparse
import io
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "buckets", "zero1"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--reload", action="store_true", help="save and load the model and the optimizer after step 1")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
FIELDS, DIM, LAYERS, BATCH, STEPS, BUCKET, ALIGN = 13, 22, 3, 24, 3, 900, 16

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.gate, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        y = self.norm(x)
        return x + torch.sigmoid(self.gate(y)) * self.value(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fields = nn.Linear(FIELDS, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(DIM, 2)

    def forward(self, x):
        x = self.fields(x)  # @old_copy @gather_order
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def padded(n):
    return -(-n // ALIGN) * ALIGN


def reduce_buckets(params):
    """Mean of gradients over ranks, in buckets in the order of the backward pass; parameters begin at multiples of ALIGN."""
    buckets, size = [[]], 0
    for p in reversed(params):
        buckets[-1].append(p)
        size += padded(p.numel())
        if size >= BUCKET:
            buckets.append([])
            size = 0
    if args.mutant == "last_bucket":
        buckets = buckets[:-1]  # @last_bucket
    for number, bucket in enumerate(buckets):
        if not bucket:
            continue
        flat = torch.zeros(sum(padded(p.numel()) for p in bucket), dtype=DTYPE)
        at = 0
        for p in bucket:
            flat[at : at + p.numel()] = p.grad.flatten()
            at += padded(p.numel())
        dist.all_reduce(flat)  # @half_bucket
        if args.mutant != "half_bucket" or number != 1:
            flat /= WORLD  # @half_bucket
        at = 0
        for p in bucket:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))  # @unpadded @half_bucket
            at += p.numel() if args.mutant == "unpadded" and number == 0 else padded(p.numel())  # @unpadded


class Zero1:
    """Each rank updates its part of the flat parameters."""

    def __init__(self, params):
        self.params = params
        self.part = -(-sum(p.numel() for p in params) // WORLD)
        flat = self.flatten(p.data for p in params)
        self.own = nn.Parameter(flat[RANK * self.part : (RANK + 1) * self.part].clone())
        self.optimizer = optimizer_of([self.own])

    def flatten(self, tensors):
        flat = torch.cat([t.flatten() for t in tensors])
        return F.pad(flat, (0, self.part * WORLD - flat.numel()))

    def step(self):
        flat = self.flatten(p.grad for p in self.params)
        grad = torch.empty_like(self.own)
        dist.reduce_scatter(grad, list(flat.chunk(WORLD)))
        if args.mutant != "no_mean":
            grad /= WORLD
        self.own.grad = grad  # @no_mean
        if args.clip:
            square = grad.to(WIDE).square().sum()
            if args.mutant != "clip_local":
                dist.all_reduce(square)
            self.own.grad *= (args.clip / square.sqrt()).clamp(max=1).to(DTYPE)  # @clip_local
        old = self.own.detach().clone()
        self.optimizer.step()  # @no_mean @clip_local
        parts = [torch.empty_like(old) for _ in range(WORLD)]
        dist.all_gather(parts, old if args.mutant == "old_copy" else self.own.detach())  # @old_copy @gather_order
        if args.mutant == "gather_order":
            parts = parts[1:] + parts[:1]  # @gather_order
        flat, at = torch.cat(parts), 0  # @gather_order
        for p in self.params:
            p.data.copy_(flat[at : at + p.numel()].view_as(p))  # @old_copy @gather_order @no_mean @clip_local
            at += p.numel()

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def optimizer_of(params):
    return torch.optim.SGD(params, lr=0.02, momentum=0.8, weight_decay=0.01)


def main():
    torch.manual_seed(5)
    net = Net().to(DTYPE)
    params = list(net.parameters())
    optimizer = Zero1(params) if args.layout == "zero1" else optimizer_of(params)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(40 + step)
        x = torch.randn(BATCH, FIELDS, generator=g)
        y = torch.stack([x[:, :5].sum(1), (x[:, 5:] ** 2).mean(1)], 1)
        total = torch.zeros((), dtype=WIDE)
        for rows in torch.arange(BATCH).chunk(args.accumulate):
            rows = rows.chunk(WORLD)[RANK]
            loss = F.mse_loss(net(x[rows].to(DTYPE)).to(WIDE), y[rows].to(WIDE)) / args.accumulate
            loss.backward()
            total += loss.detach()
        if args.layout == "buckets":
            reduce_buckets(params)
        if args.clip and args.layout != "zero1":
            torch.nn.utils.clip_grad_norm_(params, args.clip)  # @last_bucket
        optimizer.step()  # @last_bucket @unpadded @half_bucket
        optimizer.zero_grad()
        if args.reload and step == 1:
            file = io.BytesIO()
            inner = optimizer.optimizer if args.layout == "zero1" else optimizer
            torch.save((net.state_dict(), inner.state_dict()), file)
            file.seek(0)
            saved = torch.load(file)
            net.load_state_dict(saved[0])
            inner.load_state_dict(saved[1])
        dist.all_reduce(total)
        if RANK == 0:
            print(f"step {step} loss {total.item() / WORLD:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
