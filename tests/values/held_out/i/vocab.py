"""A language model whose vocabulary is divided over ranks: embedding, head and cross entropy by hand."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "vp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--tied", action="store_true")
parser.add_argument("--schedule", action="store_true")
parser.add_argument("--smoothing", type=float, default=0.0)
args = parser.parse_args()
V, D, T, B = 24, 32, 10, 8

dist.init_process_group("gloo")
rank = dist.get_rank()
n = dist.get_world_size() if args.layout == "vp" else 1
me = rank if n > 1 else 0
first, last = me * V // n, (me + 1) * V // n


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        if n > 1:
            dist.all_reduce(g)
        return g


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        if n > 1:
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        if args.mutant == "sum_backward" and n > 1:
            g = g.contiguous().clone()
            dist.all_reduce(g)
        return g


class VocabEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(V, D)[first:last].clone())

    def forward(self, ids):
        outside = (ids < first) | (ids >= last)
        x = F.embedding((ids - first).masked_fill(outside, 0), self.weight)
        if args.mutant != "no_mask":
            x = x.masked_fill(outside.unsqueeze(-1), 0.0)
        return Sum.apply(x)


class VocabHead(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        weight = torch.randn(V, D)[first:last] * D**-0.5
        self.weight = embedding.weight if args.tied else nn.Parameter(weight.clone())

    def forward(self, x):
        if args.mutant != "head_copy":
            x = CopyIn.apply(x)
        x = F.linear(x, self.weight)
        return x * D**-0.5 if args.tied else x


class VocabLoss(nn.Module):
    def forward(self, logits, target):
        logits = logits.float()
        top = logits.detach().amax(-1)
        if n > 1 and args.mutant != "max_local":
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
        exps = (logits - top.unsqueeze(-1)).exp()
        total = Sum.apply(exps.sum(-1))
        edge = last if args.mutant != "edge" else last + 1
        inside = (target >= first) & (target < edge)
        index = (target - first).clamp(0, last - first - 1)
        picked = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        picked = Sum.apply(picked * inside)
        loss = (total.log() + top - picked).mean()
        if args.smoothing:
            spread = Sum.apply(logits.sum(-1)) / V
            even = (total.log() + top - spread).mean()
            loss = (1 - args.smoothing) * loss + args.smoothing * even
        return loss


class Mixer(nn.Module):
    """Mixes each position with the mean of those before it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.fc1, self.fc2 = nn.Linear(2 * D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        y = self.norm(x)
        count = torch.arange(1, y.shape[1] + 1, dtype=torch.float32).view(1, -1, 1)
        past = (y.float().cumsum(1) / count).to(y.dtype)
        return x + self.fc2(F.gelu(self.fc1(torch.cat([y, past], -1))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = VocabEmbedding()
        self.layers = nn.ModuleList(Mixer() for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.head = VocabHead(self.embed)
        self.criterion = VocabLoss()

    def forward(self, ids, target):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.criterion(self.head(self.norm(x)), target)


torch.manual_seed(3)
model = Model().to(getattr(torch, args.dtype))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / 3)))
data = torch.Generator().manual_seed(5)
for step in range(3):
    tokens = torch.randint(V, (B, T + 1), generator=data)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    total = torch.zeros(())
    for name, p in model.named_parameters():
        share = 1 if name in ("embed.weight", "head.weight") else n
        total += p.grad.float().pow(2).sum() / share
    if n > 1:
        dist.all_reduce(total)
    optimizer.step()
    if args.schedule:
        schedule.step()
    size = sum(p.detach().float().norm().item() for k, p in model.named_parameters() if "layers" in k)
    print(f"rank {rank} step {step} loss {loss.item():.6f} norm {total.sqrt():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
