"""DistributedDataParallel with accumulation, clipping, a moving average of weights, uneven batches."""
import argparse
import contextlib
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "ddp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--ema", action="store_true")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--batch", type=int, default=16)
args = parser.parse_args()
FEATURES, D, CLASSES = 12, 32, 8

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
ranks = world if args.layout == "ddp" else 1


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.fc1, self.fc2 = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        return x + self.fc2(F.relu(self.fc1(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, D)
        self.layers = nn.ModuleList(Residual() for _ in range(3))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, CLASSES, bias=False)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        return self.head(self.norm(x))


class Criterion(nn.Module):
    """Cross entropy with a temperature that is learned; the sum over samples."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([1.5]))

    def forward(self, logits, labels):
        return F.cross_entropy(logits.float() * self.temperature.float(), labels, reduction="sum")


class Task(nn.Module):
    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def forward(self, x, labels):
        return self.criterion(self.net(x), labels)


torch.manual_seed(1)
dtype = getattr(torch, args.dtype)
net, criterion = Net().to(dtype), Criterion().to(dtype)
ema = copy.deepcopy(net)
average = copy.deepcopy(net)
parameters = list(net.parameters()) + list(criterion.parameters())
task, wrapped = Task(net, criterion), None
if args.layout == "ddp" and args.mutant == "unwrapped":
    task.net = wrapped = DistributedDataParallel(net)
elif args.layout == "ddp":
    wrapped = task = DistributedDataParallel(task)
if args.mutant == "late_init" and rank > 0:
    torch.manual_seed(rank)
    nn.init.normal_(net.head.weight, std=0.2)
rate = 0.05 * ranks if args.mutant == "rate" else 0.05
optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
data = torch.Generator().manual_seed(4)


def loss_of(x, labels, scale):
    with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
        return task(x, labels) * scale


def update_average(decay=0.8):
    with torch.no_grad():
        for e, p in zip(ema.parameters(), net.parameters()):
            e.mul_(decay).add_(p, alpha=1 - decay)


for step in range(3):
    xs = torch.randn(args.batch, FEATURES, generator=data).to(dtype)
    labels = torch.randint(CLASSES, (args.batch,), generator=data)
    shard = 0 if args.mutant == "sampler" and step >= 1 else rank
    x, y = xs.tensor_split(ranks)[shard], labels.tensor_split(ranks)[shard]
    scale = ranks / args.batch
    if args.mutant == "mean_local":
        scale = 1 / len(x)
    optimizer.zero_grad()
    total = torch.zeros(())
    parts = list(zip(x.tensor_split(args.accumulate), y.tensor_split(args.accumulate)))
    for i, (px, py) in enumerate(parts):
        late = i == len(parts) - 1 and args.mutant != "no_sync"
        quiet = wrapped is not None and not late
        with wrapped.no_sync() if quiet else contextlib.nullcontext():
            loss = loss_of(px, py, scale)
            loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(parameters, args.clip or 1e9)
    optimizer.step()
    if args.ema:
        update_average()
        with torch.no_grad():
            if args.mutant == "ema_rank" and rank == 1 and step >= 1:
                ema.load_state_dict(average.state_dict())
            score = ema(xs).float().pow(2).mean().item()
        print(f"rank {rank} step {step} average {score:.6f}", flush=True)
    if ranks > 1:
        dist.all_reduce(total)
        total /= ranks
    size = sum(p.detach().float().norm().item() for p in parameters)
    print(f"rank {rank} step {step} loss {total.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
