"""Vocabulary parallel by hand: a tied embedding in parts of the vocabulary, and the cross entropy over parts of the logits."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM = 60, 24
ap = argparse.ArgumentParser()
ap.add_argument("--layout", default="one", choices=["one", "vocab"])
ap.add_argument("--mutant", default="none")
ap.add_argument("--dtype", default="float32")
args = ap.parse_args()


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class ParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, low):
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        top = logits.amax(-1)
        if args.mutant != "max_local":
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
        shifted = logits - top[:, None]
        exp = shifted.exp()
        total = exp.sum(-1)
        dist.all_reduce(total)
        here = (targets >= low) & (targets < low + logits.shape[-1])
        index = (targets - low).clamp(0, logits.shape[-1] - 1)
        picked = shifted.gather(-1, index[:, None])[:, 0] * here
        dist.all_reduce(picked)
        ctx.save_for_backward(exp / total[:, None], here, index)
        return total.log() - picked

    @staticmethod
    def backward(ctx, g):
        softmax, here, index = ctx.saved_tensors
        grad = softmax.clone()
        hot = here.to(grad.dtype)
        if args.mutant == "target_everywhere":
            hot = torch.ones_like(hot)
        grad[torch.arange(len(index)), index] -= hot
        return grad * g[:, None], None, None


class VocabEmbedding(nn.Module):
    def __init__(self, shift=0):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.low, self.high, self.shift = rank * VOCAB // world, (rank + 1) * VOCAB // world, shift
        self.weight = nn.Parameter((torch.randn(VOCAB, DIM) * 0.3)[self.low:self.high].clone())

    def forward(self, ids):
        low = self.low + self.shift
        away = (ids < low) | (ids >= low + self.high - self.low)
        rows = F.embedding((ids - low).masked_fill(away, 0), self.weight)
        return SumForward.apply(rows.masked_fill(away[..., None], 0))


class CausalMix(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.conv = nn.Conv1d(DIM, DIM, width)
        self.proj = nn.Linear(DIM, DIM)
        self.width = width

    def forward(self, x):
        y = F.pad(self.norm(x).transpose(1, 2), (self.width - 1, 0))
        return x + self.proj(F.gelu(self.conv(y)).transpose(1, 2))


class Head(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.bias = nn.Parameter((torch.randn(VOCAB) * 0.1)[embedding.low:embedding.high].clone())

    def forward(self, x, weight):
        return F.linear(SumBackward.apply(x), weight, self.bias)


class Criterion(nn.Module):
    def forward(self, logits, targets, low):
        return ParallelCrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), low).mean()


class ConvLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = VocabEmbedding(shift=int(args.mutant == "offset" and dist.get_rank() == 1))
        self.mixes = nn.Sequential(CausalMix(), CausalMix())
        self.norm, self.head, self.criterion = nn.LayerNorm(DIM), Head(self.embed), Criterion()

    def forward(self, ids, targets):
        x = self.norm(self.mixes(self.embed(ids)))
        weight = self.embed.weight
        if args.mutant == "tied_detached":
            weight = weight.detach()
        return self.criterion(self.head(x, weight), targets, self.embed.low)


dist.init_process_group("gloo")
torch.manual_seed(23)
model = ConvLM().to(getattr(torch, args.dtype))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
g = torch.Generator().manual_seed(24)
for step in range(2):
    ids = torch.randint(VOCAB, (4, 17), generator=g)
    loss = model(ids[:, :-1], ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    ids = torch.randint(VOCAB, (4, 17), generator=g)
    loss = model(ids[:, :-1], ids[:, 1:])
print(f"FINAL {dist.get_rank()} {loss.item():.6f}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
