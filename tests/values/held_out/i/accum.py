"""Gradient accumulation over micro-batches of masked tokens, with data parallelism by hand."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "dp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--warmup", type=int, default=0)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="sgd")
args = parser.parse_args()
V, D, T, B = 40, 24, 8, 16

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
n = world if args.layout == "dp" else 1
me = rank if n > 1 else 0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.gate, self.value = nn.Linear(D, 2 * D), nn.Linear(D, 2 * D)
        self.out = nn.Linear(2 * D, D)

    def forward(self, x):
        y = self.norm(x)
        past = F.pad(y, (0, 0, 1, 0))[:, :-1]
        return x + self.out(F.silu(self.gate(y)) * self.value(past))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids):
        x = self.tok(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


def reduce_gradients():
    if n > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)


torch.manual_seed(15)
model = Model().to(getattr(torch, args.dtype))
if args.optimizer == "adam":
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / max(1, args.warmup)))
average = [p.detach().clone() for p in model.parameters()]
data = torch.Generator().manual_seed(16)
for step in range(3):
    tokens = torch.randint(V, (B, T + 1), generator=data)
    mask = torch.rand(B, T, generator=data) < torch.linspace(0.3, 1.0, B).unsqueeze(1)
    count = mask.sum()
    tokens, mask = tokens.chunk(n)[me], mask.chunk(n)[me]
    if args.mutant != "keep_gradients" or step == 0:
        optimizer.zero_grad()
    shown = torch.zeros(())
    for i, (ids, valid) in enumerate(zip(tokens.chunk(args.accumulate), mask.chunk(args.accumulate))):
        logits = model(ids[:, :-1])
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (each * valid.flatten()).sum() / count
        if args.mutant == "mean_micro":
            loss = (each * valid.flatten()).sum() / valid.sum() / (args.accumulate * n)
        loss.backward()
        shown += loss.detach()
        if args.mutant == "reduce_micro":
            reduce_gradients()
        if args.mutant == "clear_micro" and i == 0 and me == 1:
            model.tok.weight.grad = None
        if args.mutant == "schedule_micro" and i:
            schedule.step()
    if args.mutant == "clip_first":
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip / n)
    if args.mutant != "reduce_micro":
        reduce_gradients()
    limit = args.clip if args.clip and args.mutant != "clip_first" else 1e9
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    schedule.step()
    if args.ema:
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.3)
            kept = [p.detach().clone() for p in model.parameters()]
            torch._foreach_copy_(list(model.parameters()), average)
            model.eval()
            score = model(tokens[:, :-1]).float().pow(2).sum()
            if n > 1:
                dist.all_reduce(score)
            model.train()
            torch._foreach_copy_(list(model.parameters()), kept)
        print(f"rank {rank} step {step} average {score.item():.4f}", flush=True)
    if n > 1:
        dist.all_reduce(shown)
    size = sum(p.detach().float().norm().item() for p in model.parameters())
    print(f"rank {rank} step {step} loss {shown.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
