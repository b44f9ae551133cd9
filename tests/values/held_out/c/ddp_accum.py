"""Mixture of task heads under DistributedDataParallel: accumulation with no_sync, unused heads, uneven batches."""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ddp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=1)
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--unused", action="store_true", help="each step trains one of the heads")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

FEATURES, DIM, TASKS, CLASSES, BATCH = 20, 32, 2, 6, 24
dist.init_process_group("gloo")
RANK = dist.get_rank()
DP = dist.get_world_size() if args.layout == "ddp" else 1
DTYPE = getattr(torch, args.dtype)


class GatedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.router = nn.Linear(DIM, 3)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        gates = self.router(y).softmax(-1)
        return x + sum(gates[:, i : i + 1] * torch.tanh(expert(y)) for i, expert in enumerate(self.experts))


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(FEATURES, DIM), nn.GELU())
        self.blocks = nn.ModuleList(GatedBlock() for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(DIM, CLASSES) for _ in range(TASKS))

    def forward(self, x, task):
        x = self.encode(x)
        for block in self.blocks:
            x = block(x)
        if task is None:
            return sum(head(x) for head in self.heads)
        return self.heads[task](x)


torch.manual_seed(17)
model = MultiTask().to(DTYPE)
network = model
if DP > 1:
    if args.mutant == "ignored":
        names = [name for name, _ in model.named_parameters() if name.startswith("blocks.1.router")]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)  # @ignored
    network = DistributedDataParallel(model, find_unused_parameters=args.unused, bucket_cap_mb=0.01)
if args.mutant == "late_head":
    torch.manual_seed(1000 + RANK)
    for head in model.heads:
        head.reset_parameters()  # @late_head
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=args.scaler)
# Rank 0 has fewer samples than others
bounds = {1: [0, 24], 2: [0, 8, 24], 3: [0, 4, 14, 24], 4: [0, 3, 10, 17, 24]}[DP]

for step in range(3):
    generator = torch.Generator().manual_seed(20 + step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    labels = (inputs @ torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(9))).argmax(-1)
    start, stop = bounds[RANK], bounds[RANK + 1]
    task = step % TASKS if args.unused else None
    micro = list(zip(inputs[start:stop].to(DTYPE).chunk(args.micro), labels[start:stop].chunk(args.micro)))
    total = torch.zeros((), dtype=torch.float64)
    for i, (x, y) in enumerate(micro):
        last = i == len(micro) - 1 and args.mutant != "never_sync"
        forward = model if args.mutant == "around" and step == 1 else network
        with contextlib.nullcontext() if last or DP == 1 else network.no_sync():  # @never_sync
            with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
                logits = forward(x, task)  # @around
            loss = F.cross_entropy(logits.to(torch.promote_types(DTYPE, torch.float32)), y, reduction="sum") / BATCH
            total += loss.detach().double()
            # DistributedDataParallel takes the mean over ranks, but the loss is a sum over the global batch
            scaler.scale(loss * DP).backward()  # @never_sync @around
    scaler.unscale_(optimizer)
    if args.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    scaler.step(optimizer)  # @ignored @never_sync @around
    scaler.update()
    size = sum(p.detach().double().abs().sum() for p in model.parameters())
    slope = sum(p.grad.double().abs().sum() for p in model.parameters() if p.grad is not None)
    optimizer.zero_grad()
    score = torch.zeros(())
    if args.evaluate:
        model.eval()
        with torch.no_grad():
            held_out = torch.randn(10, FEATURES, generator=torch.Generator().manual_seed(8)).to(DTYPE)
            score = model(held_out, 0).logsumexp(-1).mean()
        model.train()
    if DP > 1:
        dist.all_reduce(total)
    if RANK == 0:
        print(f"step {step} loss {total.item():.7f} sum {size.item():.7f} grad {slope.item():.7f} score {score.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
