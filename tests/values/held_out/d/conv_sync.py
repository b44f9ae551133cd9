"""Convolutional network whose normalization is synchronised by hand; ranks have batches of different sizes."""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "sync"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32", help="also: autocast")
args = parser.parse_args()

CHANNELS, WIDTH, SIZE, CLASSES, BLOCKS, BATCH, STEPS = 3, 16, 8, 6, 3, 12, 3
SIZES = {1: [12], 2: [8, 4], 3: [6, 4, 2], 4: [5, 4, 2, 1]}


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, block):
        ctx.block = block
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if args.mutant != "local_backward" or ctx.block != 1:
            dist.all_reduce(gradient)  # @local_backward
        return gradient, None  # @local_backward


class SyncNorm(nn.Module):
    """Batch normalization with statistics of all ranks."""

    def __init__(self, block):
        super().__init__()
        self.block = block
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.register_buffer("running_var", torch.ones(WIDTH))

    def statistics(self, x):
        count = x.new_full((1,), x.numel() / WIDTH)
        sums = torch.cat([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count])  # @local_backward
        if dist.get_world_size() > 1:
            if args.mutant == "mean_of_means" and self.block == 0:
                sums = sums / count  # @mean_of_means
            local, sums = sums, AllReduce.apply(sums, self.block)  # @local_backward @mean_of_means
            if args.mutant == "local_running" and self.block == 2:
                local = local.detach()
                mean = local[:WIDTH] / local[-1]
                return sums, (mean, local[WIDTH:-1] / local[-1] - mean.square())  # @local_running
        return sums, None

    def forward(self, x):
        kept, x = x.dtype, x if args.dtype == "float64" else x.float()
        if self.training:
            sums, local = self.statistics(x)  # @local_running
            mean = sums[:WIDTH] / sums[-1]  # @mean_of_means
            variance = sums[WIDTH:-1] / sums[-1] - mean.square()  # @mean_of_means
            running = local or (mean.detach(), variance.detach())
            self.running_mean.lerp_(running[0].to(self.running_mean.dtype), 0.3)  # @local_running
            self.running_var.lerp_(running[1].to(self.running_var.dtype), 0.3)  # @local_running
        else:
            mean, variance = self.running_mean, self.running_var
        x = (x - mean[:, None, None]) * (variance + 1e-4).rsqrt()[:, None, None]  # @local_backward @mean_of_means
        return (x * self.weight[:, None, None] + self.bias[:, None, None]).to(kept)  # @mean_of_means


class Block(nn.Module):
    def __init__(self, block, inputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, WIDTH, 3, padding=1, bias=False)
        self.norm = SyncNorm(block)

    def forward(self, x):
        y = F.silu(self.norm(self.conv(x)))
        return x + y if x.shape == y.shape else y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(i, WIDTH if i else CHANNELS) for i in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    dtype = torch.float32 if args.dtype == "autocast" else getattr(torch, args.dtype)
    model = Net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(1)

    def autocast():
        return torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext()

    for step in range(STEPS):
        scales = torch.linspace(0.2, 3, BATCH).pow(2).view(-1, 1, 1, 1)  # images differ much in contrast
        images = (torch.randn(BATCH, CHANNELS, SIZE, SIZE, generator=generator) + 0.5) * scales
        x = images.to(dtype).split(SIZES[world])[rank]
        y = torch.randint(CLASSES, (BATCH,), generator=generator).split(SIZES[world])[rank]
        model.train()
        with autocast():
            loss = F.cross_entropy(model(x), y, reduction="sum") / BATCH  # weighted by the batches' sizes
        loss.backward()
        if args.layout == "sync":
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad(), autocast():
            evaluation = F.cross_entropy(model(x), y, reduction="sum") / BATCH
        totals = torch.stack([loss.detach().float(), evaluation.float()])
        dist.all_reduce(totals)
        if rank == 0:
            print(f"loss {step} {totals[0].item():.7f}\nevaluation {step} {totals[1].item():.7f}", flush=True)
    check = sum((p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum() for p in model.parameters())
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
