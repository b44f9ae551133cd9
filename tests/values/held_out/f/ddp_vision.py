"""Image classifier in DistributedDataParallel: batch norm over all ranks by hand, an averaged model, evaluation."""
import argparse
import copy
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
parser.add_argument("--uneven", action="store_true", help="rank 0 has more samples than the others")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
BATCH, CLASSES, EVAL = 24, 10, 12


class AllReduce(torch.autograd.Function):
    """The sum over ranks, each of which has a loss that depends on it."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        if args.mutant == "stats_backward":
            return grad  # @stats_backward
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SyncNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        if not self.training:
            mean, var = self.running_mean, self.running_var
        else:
            local = x.new_tensor([x.numel() / x.shape[1]])
            stats = AllReduce.apply(torch.cat([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), local]))  # @stats_backward
            count = stats[-1].detach()
            mean, square = (stats[:-1] / count).chunk(2)
            var = square - mean.square()
            if args.mutant == "local_variance":
                own = x.var((0, 2, 3), unbiased=False)
                var = AllReduce.apply(own) / dist.get_world_size()  # @local_variance
            with torch.no_grad():
                if args.mutant == "running_var_count":
                    count = local.new_tensor(x.shape[0])  # of the samples of the rank
                self.running_mean.lerp_(mean, 0.3)
                self.running_var.lerp_(var * count / (count - 1), 0.3)  # @running_var_count
        x = (x - mean[:, None, None]) * (var[:, None, None] + 1e-5).rsqrt()  # @local_variance
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class Stage(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.norm = SyncNorm(cout)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, 12, 1), Stage(12, 16, 2), Stage(16, 24, 2)])
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.ema = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x, ema=False):
        return self.ema(x) if ema else self.net(x)

    @torch.no_grad()
    def average(self, decay):
        for e, p in zip(self.ema.parameters(), self.net.parameters()):
            e.lerp_(p, 1 - decay)  # @ema_before
        for e, b in zip(self.ema.buffers(), self.net.buffers()):
            e.copy_(b)


def data(seed, n):
    g = torch.Generator().manual_seed(seed)
    target = torch.randint(0, CLASSES, (n,), generator=g)
    base = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    bias = torch.linspace(-2, 2, n).view(n, 1, 1, 1)  # brightness: ranks have different statistics
    return (base[target] + torch.randn(n, 3, 8, 8, generator=g) + bias).to(DTYPE), target


def share(n, rank, world):
    if args.uneven and world > 1:
        first = n // 2
        rest = torch.arange(first, n).chunk(world - 1)
        return torch.arange(first) if rank == 0 else rest[rank - 1]
    return torch.arange(n).chunk(world)[rank]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = net = Classifier().to(DTYPE)
    if args.layout == "ddp":
        model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    for step in range(3):
        net.train()
        images, target = data(10 + step, BATCH)
        rows = share(BATCH, rank, world)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[rows]), target[rows], reduction="sum") * world / BATCH
        loss.backward()
        if args.mutant == "ema_before":
            net.average(0.6)  # @ema_before
        optimizer.step()
        if args.mutant != "ema_before":
            net.average(0.6)
        net.eval()
        with torch.no_grad():
            images, target = data(50, EVAL)
            rows = share(EVAL, rank, world)
            score = F.cross_entropy(net(images[rows], ema=True), target[rows], reduction="sum") / EVAL
        both = torch.stack([loss.detach() / world, score])
        dist.all_reduce(both)
        if rank == 0:
            print(f"step {step} loss {both[0].item():.7f} evaluation {both[1].item():.7f}", flush=True)
    if args.verify and rank == 0:
        print(f"sum {sum(p.detach().double().abs().sum().item() for p in net.parameters()):.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
