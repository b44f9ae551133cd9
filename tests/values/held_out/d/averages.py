"""Averages of weights: exponential (EMA), stochastic weight averaging (SWA), and local SGD."""
import argparse
import copy
import io
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ddp", "local"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--average", default="ema", choices=["ema", "swa", "none"])
parser.add_argument("--period", type=int, default=1, help="local SGD: steps between averages")
parser.add_argument("--reload", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()

FEATURES, DIM, CLASSES, LAYERS, BATCH, STEPS, DECAY = 16, 48, 10, 3, 24, 3, 0.6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class EMA:
    def __init__(self, model):
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        if args.mutant == "rank0_only" and dist.get_rank() != 0:
            return  # @rank0_only
        for shadow, p in zip(self.model.parameters(), model.parameters()):
            shadow.lerp_(p, 1 - DECAY)  # @before_step @rank0_only


def average_weights(model):
    """Local SGD: the mean of the workers' models."""
    with torch.no_grad():
        for p in model.parameters():
            if args.mutant == "vectors_skipped" and p.ndim < 2:
                continue  # @vectors_skipped
            dist.all_reduce(p)  # @vectors_skipped
            p.div_(dist.get_world_size())


def reload(model, optimizer, make):
    """Save both, and restore them to new objects."""
    stream = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
    stream.seek(0)
    state = torch.load(stream)
    optimizer = make()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return optimizer


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    model = Net().to(dtype)
    ema = EMA(model)
    swa = AveragedModel(model)
    wrapped = DistributedDataParallel(model) if args.layout == "ddp" else model

    def make():
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if args.average != "none" else 0.0)

    optimizer = make()
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(BATCH, FEATURES, generator=generator).to(dtype).chunk(world)[rank]
        y = torch.randint(CLASSES, (BATCH,), generator=generator).chunk(world)[rank]
        mean = torch.zeros(())
        for part, target in zip(x.chunk(args.accumulate), y.chunk(args.accumulate)):
            loss = F.cross_entropy(wrapped(part), target) / args.accumulate  # @vectors_skipped
            loss.backward()
            mean += loss.detach().float()
        if args.average == "ema" and args.mutant == "before_step":
            ema.update(model)  # @before_step
        optimizer.step()
        optimizer.zero_grad()
        if args.layout == "local" and (step + 1) % args.period == 0:
            average_weights(model)
        if args.average == "ema" and args.mutant != "before_step":
            ema.update(model)  # @before_step @rank0_only
        if args.average == "swa":
            swa.update_parameters(model)
        if args.average != "none":
            average = ema.model if args.average == "ema" else swa.module
            with torch.no_grad():
                mean += F.cross_entropy(average(x), y).float()  # @before_step @rank0_only
        if args.reload and step == 1:
            optimizer = reload(model, optimizer, make)
        dist.all_reduce(mean)
        if rank == 0:
            print(f"loss {step} {mean.item() / world:.7f}", flush=True)
    average = {"ema": ema.model, "swa": swa.module, "none": model}[args.average]
    check = sum((p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum()
                for m in (model, average) for p in m.parameters())
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
