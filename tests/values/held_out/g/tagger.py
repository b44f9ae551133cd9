"""Tagger in DistributedDataParallel: accumulation with no_sync, uneven batches, a hook in two levels, averaged weights."""
import argparse
import contextlib
import copy
import os
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
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--hook", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--plateau", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
WORDS, DIM, TAGS, LENGTH, BATCH, STEPS = 50, 24, 9, 10, 16, 4

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Mix(nn.Module):
    """Each word with its neighbours."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.conv = nn.Conv1d(DIM, 2 * DIM, 3, padding=1)
        self.out = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        y = self.conv(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.out(F.relu(y))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, DIM)
        self.mixes = nn.ModuleList(Mix() for _ in range(3))
        self.head = nn.Linear(DIM, TAGS)

    def forward(self, tokens):
        x = self.words(tokens)  # @swap_back
        for mix in self.mixes:
            x = mix(x)
        return self.head(x)


def batch(step):
    g = torch.Generator().manual_seed(300 + step)
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH), generator=g)
    tags = (tokens * 7 + tokens.roll(1, 1)) % TAGS
    lengths = torch.randint(2, LENGTH + 1, (BATCH,), generator=g)
    lengths = lengths.sort(descending=True).values  # first ranks have more words
    return tokens, tags.masked_fill(torch.arange(LENGTH)[None] >= lengths[:, None], -100)


def two_level_hook(groups, bucket):
    """Sum inside of a node, then between nodes, then the mean."""
    inner, outer = groups
    flat = bucket.buffer()
    flat.div_(WORLD)
    dist.all_reduce(flat, group=inner)  # @inner_only
    if args.mutant != "inner_only":
        dist.all_reduce(flat, group=outer)
    future = torch.futures.Future()
    future.set_result(flat)
    return future


def groups():
    half = max(WORLD // 2, 1)
    inner = outer = None
    for n in range(WORLD // half):
        group = dist.new_group(list(range(n * half, n * half + half)))
        inner = group if RANK // half == n else inner
    for n in range(half):
        group = dist.new_group(list(range(n, WORLD, half)))
        outer = group if RANK % half == n else outer
    return inner, outer


def evaluate(net, average, tokens, tags):
    own = copy.deepcopy(net.state_dict())
    net.load_state_dict(average)
    with torch.no_grad():
        right = (net(tokens).argmax(-1) == tags).sum().item() / (tags != -100).sum().item()
    if args.mutant != "swap_back" or RANK == 0:
        net.load_state_dict(own)  # @swap_back
    return right


def main():
    torch.manual_seed(3)
    model = net = Tagger().to(DTYPE)
    if args.layout == "ddp":
        model = DistributedDataParallel(net, bucket_cap_mb=0.01)
        if args.hook:
            model.register_comm_hook(groups(), two_level_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.0)
    average = copy.deepcopy(net.state_dict())
    for step in range(STEPS):
        tokens, tags = batch(step)
        count = (tags != -100).sum()
        total = torch.zeros((), dtype=WIDE)
        parts = torch.arange(BATCH).chunk(args.accumulate)
        for i, rows in enumerate(parts):
            rows = rows.chunk(WORLD)[RANK]
            reduce_now = i == (0 if args.mutant == "sync_first" else args.accumulate - 1)  # @sync_first
            sync = contextlib.nullcontext() if reduce_now or model is net else model.no_sync()  # @sync_first
            with sync:
                logits = model(tokens[rows]).to(WIDE)
                loss = F.cross_entropy(logits.flatten(0, 1), tags[rows].flatten(), reduction="sum")
                total += loss.detach() / count
                if args.mutant == "local_count":
                    loss = loss / (tags[rows] != -100).sum() / args.accumulate  # @local_count
                else:
                    loss = loss * WORLD / count
                loss.backward()  # @sync_first @local_count
        if args.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)  # @sync_first
        optimizer.step()  # @plateau_local @sync_first @inner_only
        optimizer.zero_grad()
        mean = total.clone()
        dist.all_reduce(mean)
        if args.plateau:
            plateau.step(total if args.mutant == "plateau_local" else mean)  # @plateau_local
        with torch.no_grad():
            for name, value in net.state_dict().items():
                average[name].lerp_(value, 0.5)
        if args.evaluate and step == 1:
            right = evaluate(net, average, *batch(99))
            if RANK == 0:
                print(f"average has {right:.3f} right")
        if RANK == 0:
            print(f"step {step} loss {mean.item():.6f} lr {optimizer.param_groups[0]['lr']:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
