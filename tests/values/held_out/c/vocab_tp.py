"""Language model whose vocabulary is divided over ranks: embedding, tied head and cross entropy by hand; the rest is replicated."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "vocab"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--tie", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

VOCAB, DIM, LAYERS, BATCH, LENGTH, IGNORE = 96, 32, 2, 4, 14, -100
dist.init_process_group("gloo")
RANK = dist.get_rank()
TP = dist.get_world_size() if args.layout == "vocab" else 1
DTYPE = getattr(torch, args.dtype)
ROWS = VOCAB // TP
FIRST = RANK * ROWS


class AllReduce(torch.autograd.Function):
    """Sum in one direction of the two, identity in the other."""

    @staticmethod
    def forward(ctx, x, in_forward):
        ctx.in_forward = in_forward
        if in_forward and TP > 1:
            x = x.clone()
            dist.all_reduce(x)  # @foreign_rows
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.in_forward and TP > 1:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
        return gradient, None


class VocabEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, DIM) * 0.3)

    def forward(self, tokens):
        local = tokens - FIRST
        foreign = (local < 0) | (local >= ROWS)
        rows = F.embedding(local.masked_fill(foreign, 0), self.weight)
        if args.mutant != "foreign_rows":
            rows = rows.masked_fill(foreign[..., None], 0)
        return AllReduce.apply(rows, True)  # @foreign_rows


class VocabHead(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.weight = embed.weight if args.tie else nn.Parameter(torch.randn(VOCAB, DIM) * 0.3)

    def forward(self, x):
        if args.mutant != "head_input":
            x = AllReduce.apply(x, False)  # @head_input
        return F.linear(x, self.weight)  # @head_input


class CrossEntropyOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        high = logits.amax(-1)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        exp = (logits - high[..., None]).exp()
        total = exp.sum(-1)
        local = targets - FIRST
        foreign = (local < 0) | (local >= ROWS)
        local = local.masked_fill(foreign, 0)
        chosen = logits.gather(-1, local[..., None])[..., 0] - high
        chosen = chosen.masked_fill(foreign, 0)
        dist.all_reduce(chosen)
        dist.all_reduce(total)
        ctx.save_for_backward(exp / total[..., None], local, foreign)
        return total.log() - chosen

    @staticmethod
    def backward(ctx, gradient):
        probabilities, local, foreign = ctx.saved_tensors
        inside = torch.ones_like(gradient) if args.mutant == "foreign_gradient" else (~foreign).to(gradient.dtype)  # @foreign_gradient
        difference = probabilities.scatter_add(-1, local[..., None], -inside[..., None])  # @foreign_gradient
        return difference * gradient[..., None], None


class Loss(nn.Module):
    """The mean over targets that count."""

    def forward(self, logits, targets):
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        counts = targets != IGNORE
        if TP == 1:
            losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none").view_as(targets)
        else:
            losses = CrossEntropyOfParts.apply(logits, targets.masked_fill(~counts, 0))
        return (losses * counts).sum() / counts.sum()


class Mixer(nn.Module):
    """Causal mixing along the sequence, then along features."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.time = nn.Linear(LENGTH, LENGTH)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        mixed = F.linear(self.norm1(x).transpose(1, 2), self.time.weight.tril(), self.time.bias)
        x = x + mixed.transpose(1, 2)
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = VocabEmbedding()
        self.layers = nn.ModuleList(Mixer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = VocabHead(self.embed)
        self.loss = Loss()

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(self.norm(x)), targets)


torch.manual_seed(3)
model = LanguageModel().to(DTYPE)
for weight in {model.embed.weight, model.head.weight}:
    weight.data = weight.data[FIRST : FIRST + ROWS].clone()
sharded = {id(model.embed.weight), id(model.head.weight)}
optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3) if args.tie else torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)


def total_of(values):
    """Sum over parameters, of which sharded ones are on several ranks."""
    parts = [value / (1 if id(p) in sharded else TP) for p, value in values]
    total = torch.stack(parts).sum()
    if TP > 1:
        dist.all_reduce(total)
    return total


for step in range(3):
    generator = torch.Generator().manual_seed(40 + step)
    data = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=generator)
    tokens, targets = data[:, :-1], data[:, 1:].clone()
    for i, length in enumerate(torch.randint(LENGTH // 2, LENGTH + 1, (BATCH,), generator=generator).tolist()):
        targets[i, length:] = IGNORE
    loss = model(tokens, targets)
    loss.backward()
    if args.clip:
        norm = total_of([(p, p.grad.double().square().sum()) for p in model.parameters()]).sqrt()
        for p in model.parameters():
            p.grad.mul_(min(1.0, args.clip / (norm.item() + 1e-6)))
    optimizer.step()
    schedule.step()
    size = total_of([(p, p.detach().double().abs().sum()) for p in model.parameters()])
    slope = total_of([(p, p.grad.double().abs().sum()) for p in model.parameters()])
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {loss.item():.7f} sum {size.item():.7f} grad {slope.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
