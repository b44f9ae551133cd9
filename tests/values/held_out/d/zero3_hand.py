"""Residual network whose weights are sharded by hand: gathered on use, gradients are scattered (ZeRO-3)."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "zero3"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--evaluate", action="store_true")
args = parser.parse_args()

FEATURES, DIM, CLASSES, LAYERS, BATCH, STEPS = 20, 32, 8, 3, 16, 3
SHARDED = args.layout == "zero3"


class GatherOnUse(torch.autograd.Function):
    """All-gather of a weight's shards; backward reduce-scatter of its gradient to the mean over ranks."""

    @staticmethod
    def forward(ctx, shard, name):
        world = dist.get_world_size()
        parts = [torch.empty_like(shard) for _ in range(world)]
        dist.all_gather(parts, shard.contiguous())  # @rotated
        if args.mutant == "rotated" and name == "layers.1.down":
            parts = parts[1:] + parts[:1]  # @rotated
        return torch.cat(parts)  # @rotated

    @staticmethod
    def backward(ctx, gradient):
        world = dist.get_world_size()
        output = gradient.new_empty(gradient.shape[0] // world, *gradient.shape[1:])
        dist.reduce_scatter_tensor(output, gradient.contiguous())
        return output / world, None


class ShardedLinear(nn.Module):
    def __init__(self, inputs, outputs, name):
        super().__init__()
        self.name = name
        self.cache = None
        whole = nn.Linear(inputs, outputs)
        weight, bias = whole.weight.detach(), whole.bias.detach()
        if SHARDED:
            weight = weight.chunk(dist.get_world_size())[dist.get_rank()].clone()
            bias = bias.chunk(dist.get_world_size())[dist.get_rank()].clone()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def gather(self):
        if not SHARDED:
            return self.weight, self.bias
        weight, bias = GatherOnUse.apply(self.weight, self.name), GatherOnUse.apply(self.bias, self.name)
        if args.mutant == "stale_cache" and self.name == "layers.2.down":
            if self.cache is None:
                self.cache = weight.detach().clone()
            weight = self.cache + (weight - weight.detach())  # @stale_cache
        return weight, bias

    def forward(self, x):
        weight, bias = self.gather()  # @stale_cache
        return F.linear(x, weight, bias)  # @rotated @stale_cache


class Block(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)  # small: a replica on each rank
        self.up = ShardedLinear(DIM, 2 * DIM, f"layers.{i}.up")
        self.down = ShardedLinear(2 * DIM, DIM, f"layers.{i}.down")

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = ShardedLinear(FEATURES, DIM, "stem")
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = ShardedLinear(DIM, CLASSES, "head")

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        return self.head(self.norm(x))


def is_replica(name):
    return "norm" in name


def clip(model, limit):
    """Global norm: shards are summed over ranks, replicas count once."""
    zero = torch.zeros((), dtype=torch.float64)
    sharded = sum((p.grad.double().pow(2).sum() for n, p in model.named_parameters() if not is_replica(n)), zero)
    replicas = sum((p.grad.double().pow(2).sum() for n, p in model.named_parameters() if is_replica(n)), zero)
    if SHARDED and args.mutant != "local_norm":
        dist.all_reduce(sharded)  # @local_norm
    norm = (sharded + replicas).sqrt()  # @local_norm
    for p in model.parameters():
        p.grad.mul_((limit / norm).clamp(max=1).to(p.dtype))  # @local_norm


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model = Net().to(getattr(torch, args.dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-5)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(BATCH, FEATURES, generator=generator).to(getattr(torch, args.dtype))
        y = torch.randint(CLASSES, (BATCH,), generator=generator)
        loss = F.cross_entropy(model(x.chunk(world)[rank]), y.chunk(world)[rank])
        loss.backward()
        if SHARDED:
            for name, p in model.named_parameters():
                if is_replica(name):
                    dist.all_reduce(p.grad)
                    p.grad.div_(world)
        if args.clip:
            clip(model, args.clip)
        optimizer.step()  # @local_norm
        optimizer.zero_grad()
        mean = loss.detach().float()
        if args.evaluate:
            model.eval()
            with torch.no_grad():
                mean = mean + F.cross_entropy(model(x.chunk(world)[rank]), y.chunk(world)[rank]).float()
            model.train()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"loss {step} {mean.item() / world:.7f}", flush=True)
    check = torch.zeros((), dtype=torch.float64)
    for name, p in model.named_parameters():
        value = p.detach().double()
        if SHARDED and not is_replica(name):
            parts = [torch.empty_like(value) for _ in range(world)]
            dist.all_gather(parts, value)
            value = torch.cat(parts)
        check += (value.flatten() * torch.arange(value.numel()).cos()).sum()
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
