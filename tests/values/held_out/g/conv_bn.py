"""Convolutional network, data parallel by hand, with batch normalization over the batch of all ranks."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--weights", action="store_true", help="a weight for each sample in the loss")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
CLASSES, SIZE, BATCH, STEPS = 5, 8, 16, 3

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Sum(torch.autograd.Function):
    """Sum over ranks, forward and backward."""

    @staticmethod
    def forward(ctx, x, backward):
        ctx.sum_backward = backward
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.sum_backward:
            dist.all_reduce(grad)
        return grad, None  # @bn_backward


class SyncNorm(nn.Module):
    def __init__(self, channels, number):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.number = number

    def forward(self, x):
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)
        wide = x.to(WIDE)
        n = x.numel() // x.shape[1]
        sums = torch.stack([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3))])
        if args.mutant != "bn_local" or self.number != 1:
            sums = Sum.apply(sums, args.mutant != "bn_backward" or self.number != 2)  # @bn_backward
            n = n * WORLD
        mean = sums[0] / n  # @bn_local
        var = sums[1] / n - mean.square()  # @bn_local
        with torch.no_grad():
            seen = wide.mean((0, 2, 3)) if args.mutant == "running_local" else mean  # @running_local
            self.running_mean.lerp_(seen.to(self.running_mean.dtype), 0.1)  # @running_local
            self.running_var.lerp_((var * n / (n - 1)).to(self.running_var.dtype), 0.1)
        y = (wide - mean[:, None, None]) * (var[:, None, None] + 1e-5).rsqrt()  # @bn_local
        return y.to(x.dtype) * self.weight[:, None, None] + self.bias[:, None, None]  # @bn_local


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), SyncNorm(8, 0)
        self.conv2, self.norm2 = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), SyncNorm(12, 1)
        self.conv3, self.norm3 = nn.Conv2d(12, 12, 3, padding=1, bias=False), SyncNorm(12, 2)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))  # @bn_local
        x = F.relu(x + self.norm3(self.conv3(x)))  # @bn_backward
        return self.head(x.mean((2, 3)))


def batch(step):
    g = torch.Generator().manual_seed(60 + step)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=g)
    shift = torch.linspace(-1, 1, BATCH)[:, None, None, None]  # first ranks have darker images
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=g) + shift + labels[:, None, None, None] * 0.2
    weights = torch.rand(BATCH, generator=g) + 0.2 if args.weights else torch.ones(BATCH)
    return images.to(DTYPE), labels, weights


def main():
    torch.manual_seed(8)
    model = Net().to(DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    for step in range(STEPS):
        images, labels, weights = batch(step)
        rows = torch.arange(BATCH).chunk(WORLD)[RANK]
        logits = model(images[rows]).to(WIDE)
        each = F.cross_entropy(logits, labels[rows], reduction="none") * weights[rows]
        all_weights = weights[rows].sum() * WORLD if args.mutant == "weight_sum" else weights.sum()  # @weight_sum
        loss = each.sum() / all_weights  # @weight_sum
        loss.backward()  # @weight_sum
        for name, p in model.named_parameters():
            if args.mutant == "norm_skip" and "norm" in name:
                continue  # @norm_skip
            dist.all_reduce(p.grad)  # @norm_skip
        optimizer.step()  # @norm_skip @momentum
        if args.mutant == "momentum" and step == 0 and RANK == WORLD - 1:
            optimizer.state.clear()  # @momentum
        optimizer.zero_grad()
        schedule.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if RANK == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
        if args.evaluate:
            model.eval()
            with torch.no_grad():
                images, labels, _ = batch(100)
                right = (model(images[rows]).argmax(-1) == labels[rows]).sum()
            model.train()
            dist.all_reduce(right)
            if RANK == 0:
                print(f"right {right.item()} of {BATCH}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
