"""Segmentation with the rows of images divided over ranks: halos for convolutions, statistics summed over ranks."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "rows"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
CHANNELS, CLASSES, HEIGHT, WIDTH, BATCH, STEPS = 8, 5, 16, 6, 4, 3


def exchange(up, down):
    """Sends `up` to the rank above and `down` to the rank below; returns what they send."""
    rank, world = dist.get_rank(), dist.get_world_size()
    above, below = torch.zeros_like(down), torch.zeros_like(up)
    works = []
    if rank > 0:
        works += [dist.isend(up.contiguous(), rank - 1), dist.irecv(above, rank - 1)]
    if rank < world - 1:
        works += [dist.irecv(below, rank + 1), dist.isend(down.contiguous(), rank + 1)]
    for work in works:
        work.wait()
    return above, below


class Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        above, below = exchange(x[:, :, :n], x[:, :, -n:])
        if args.mutant == "swap":
            above, below = below, above  # @swap
        return torch.cat([above, x, below], 2)  # @swap

    @staticmethod
    def backward(ctx, grad):
        n = ctx.n
        mine = grad[:, :, n:-n].clone()  # @no_return
        if args.mutant != "no_return":
            above, below = exchange(grad[:, :, :n], grad[:, :, -n:])  # @no_return
            mine[:, :, :n] += above
            mine[:, :, -n:] += below
        return mine, None  # @no_return


class Conv(nn.Conv2d):
    def forward(self, x):
        n = self.dilation[0]
        if args.mutant == "narrow":
            x = F.pad(Halo.apply(x, 1), (0, 0, n - 1, n - 1))  # @narrow
        else:
            x = Halo.apply(x, n)  # @swap
        return F.conv2d(F.pad(x, (n, n)), self.weight, self.bias, dilation=n)  # @swap @narrow


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(CHANNELS)), nn.Parameter(torch.zeros(CHANNELS))
        self.register_buffer("mean", torch.zeros(CHANNELS))
        self.register_buffer("var", torch.ones(CHANNELS))

    def forward(self, x):
        if self.training:
            wide = x.float()
            number = torch.full((CHANNELS,), float(x.numel() // CHANNELS))
            sums = torch.stack([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3)), number])
            if args.mutant != "local_stats":
                sums = Sum.apply(sums)  # @local_stats
            mean = sums[0] / sums[2]  # @local_stats
            var = sums[1] / sums[2] - mean.square()  # @local_stats
            with torch.no_grad():
                self.mean.lerp_(mean.to(self.mean.dtype), 0.2)  # @local_stats
                self.var.lerp_(var.to(self.var.dtype), 0.2)  # @local_stats
        else:
            mean, var = self.mean.float(), self.var.float()
        shape = (1, CHANNELS, 1, 1)
        y = (x.float() - mean.view(shape)) * (var.view(shape) + 1e-3).rsqrt()  # @local_stats
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)  # @local_stats


class Block(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.conv, self.norm = Conv(CHANNELS, CHANNELS, 3, dilation=dilation), Norm()

    def forward(self, x):
        return x + F.gelu(self.norm(self.conv(x)))  # @narrow


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Conv(3, CHANNELS, 3)
        self.blocks = nn.ModuleList([Block(1), Block(2)])
        self.head = nn.Conv2d(CHANNELS, CLASSES, 1)

    def forward(self, x):
        x = self.stem(x)  # @swap
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    model = Model().to(DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(300 + step)
        x = torch.randn(BATCH, 3, HEIGHT, WIDTH, generator=g)
        x = (x + torch.linspace(-1.5, 1.5, HEIGHT)[:, None]).to(DTYPE)  # the sky is brighter than the street
        y = torch.randint(0, CLASSES, (BATCH, HEIGHT, WIDTH), generator=g)
        y[torch.rand(y.shape, generator=g) < torch.linspace(0.0, 0.6, HEIGHT)[:, None]] = -100  # unlabelled
        mine = y.chunk(world, 1)[rank]
        total = torch.zeros(())
        count = (y != -100).sum()
        if args.mutant == "local_count":
            count = (mine != -100).sum() * world  # @local_count
        for part, label in zip(x.chunk(args.accumulate), mine.chunk(args.accumulate)):
            logits = model(part.chunk(world, 2)[rank])
            loss = F.cross_entropy(logits.float(), label, reduction="sum") / count  # @local_count
            loss.backward()  # @no_return @local_count
            total += loss.detach()
        for p in model.parameters():
            dist.all_reduce(p.grad)  # @local_count @no_return
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            logits = model(x.chunk(world, 2)[rank])
            right = ((logits.argmax(1) == mine) & (mine != -100)).sum().float()
        model.train()
        both = torch.stack([total, right])
        dist.all_reduce(both)
        if rank == 0:
            print(f"step {step} loss {both[0].item():.6f} right {int(both[1])}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
