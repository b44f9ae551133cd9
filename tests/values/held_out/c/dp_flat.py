"""Convolutional classifier, data parallel by hand: gradients live in flat buckets, which are reduced after the backward pass."""
import argparse
import copy
import io
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=1, help="parts of a rank's batch")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--ema", action="store_true", help="evaluate an average of the weights after each step")
parser.add_argument("--reload", action="store_true", help="save and reload everything after step 1")
args = parser.parse_args()

CLASSES, WIDTH, BATCH, SIZE, CAP, ALIGN = 10, 16, 24, 8, 3000, 16
dist.init_process_group("gloo")
RANK = dist.get_rank()
DP = dist.get_world_size() if args.layout == "dp" else 1
DTYPE = getattr(torch, args.dtype)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(y)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.stages = nn.ModuleList(nn.ModuleDict({"block": Residual(WIDTH), "mix": nn.Conv2d(WIDTH, WIDTH, 1)}) for _ in range(3))
        self.norm = nn.GroupNorm(4, WIDTH)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.stem(images)
        for i, stage in enumerate(self.stages):
            x = stage["mix"](stage["block"](x))
            x = F.avg_pool2d(x, 2) if i < 2 else x
        return self.fc(F.silu(self.norm(x)).mean((2, 3)))


class Buckets:
    """Gradients as views into flat buffers of at least CAP elements, each aligned to ALIGN, in reversed order of parameters."""

    def __init__(self, parameters):
        self.places, self.buffers = [], []
        sizes, current = [], 0
        for parameter in reversed(list(parameters)):
            self.places.append((parameter, len(sizes), current))
            current += -(-parameter.numel() // ALIGN) * ALIGN
            if current >= CAP:
                sizes.append(current)
                current = 0
        if current:
            sizes.append(current)
        self.buffers = [torch.zeros(size, dtype=DTYPE) for size in sizes]

    def zero(self):
        for buffer in self.buffers:
            buffer.zero_()

    def collect(self, scale):
        """Adds the gradients of a backward pass."""
        for parameter, bucket, start in self.places:
            self.buffers[bucket][start : start + parameter.numel()] += parameter.grad.flatten() * scale  # @not_zeroed
            parameter.grad = None

    def reduce(self):
        buffers = self.buffers[:-1] if args.mutant == "last_bucket" else self.buffers
        works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]  # @last_bucket
        for work in works:
            work.wait()

    def give_back(self):
        packed = 0
        for parameter, bucket, start in self.places:
            buffer = self.buffers[bucket]
            if args.mutant == "unpack":
                packed = 0 if start == 0 else packed
                start, packed = packed, packed + parameter.numel()
            parameter.grad = buffer[start : start + parameter.numel()].view_as(parameter)  # @unpack @last_bucket


def clip(parameters, limit):
    norm = torch.stack([p.grad.double().square().sum() for p in parameters]).sum().sqrt()
    for p in parameters:
        p.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0).to(p.dtype))  # @clip_local


torch.manual_seed(29)
model = Classifier().to(DTYPE)
average = copy.deepcopy(model).requires_grad_(False)
buckets = Buckets(model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
# The last rank has more samples than others
bounds = [0, 24] if DP == 1 else [0, 6, 12, 18, 24] if DP == 4 else [0, 6, 12, 24] if DP == 3 else [0, 8, 24]

for step in range(3):
    generator = torch.Generator().manual_seed(90 + step)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator).to(DTYPE)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    images, labels = images[bounds[RANK] : bounds[RANK + 1]], labels[bounds[RANK] : bounds[RANK + 1]]
    if step == 0 or args.mutant != "not_zeroed":
        buckets.zero()  # @not_zeroed
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(images.chunk(args.micro), labels.chunk(args.micro)):
        loss = F.cross_entropy(model(x).to(torch.promote_types(DTYPE, torch.float32)), y)
        loss.backward()
        weight = len(y) / BATCH
        if args.mutant == "clip_local":
            clip(list(model.parameters()), args.clip)  # @clip_local
        buckets.collect(weight)
        total += loss.detach().double() * len(y) / BATCH
    if DP > 1:
        buckets.reduce()
        dist.all_reduce(total)
    buckets.give_back()
    if args.clip and args.mutant != "clip_local":
        clip(list(model.parameters()), args.clip)
    optimizer.step()
    slope = sum(p.grad.double().abs().sum() for p in model.parameters())
    optimizer.zero_grad()  # gradients are views into the buckets
    evaluation = torch.zeros(())
    if args.ema:
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters()):
                mean.lerp_(parameter, 0.3)
            x = torch.randn(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)).to(DTYPE)
            evaluation = average(x).square().mean()
    if args.reload and step == 1:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    size = sum(p.detach().double().abs().sum() for p in model.parameters())
    if RANK == 0:
        print(f"step {step} loss {total.item():.7f} sum {size.item():.7f} grad {slope.item():.7f} average {evaluation.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
