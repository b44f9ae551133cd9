"""Fully sharded weights by hand: all-gather before use, reduce-scatter of the gradient, cached over micro-batches."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "zero3"])
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=2)
args = parser.parse_args()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, module):
        ctx.module = module
        if module.cache is None:
            full = shard.new_empty(shard.shape[0] * dist.get_world_size(), *shard.shape[1:])
            dist.all_gather_into_tensor(full, shard.detach().contiguous())
            module.cache = full
        return module.cache.view_as(module.cache)  # @stale_cache

    @staticmethod
    def backward(ctx, grad):
        world, module = dist.get_world_size(), ctx.module
        if not (args.mutant == "no_mean" and module.name == "layers.2.gate"):
            grad = grad / world
        if args.mutant == "scatter_order" and module.name == "layers.1.out":
            parts = list(grad.chunk(world))
            grad = torch.cat(parts[1:] + parts[:1])  # @scatter_order
        out = grad.new_empty(grad.shape[0] // world, *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous())  # @scatter_order @no_mean
        return out, None


class ShardedLinear(nn.Module):
    def __init__(self, fan_in, fan_out, name):
        super().__init__()
        self.name, self.cache = name, None
        full = torch.randn(fan_out, fan_in) / fan_in**0.5
        self.weight = nn.Parameter(full.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.bias = nn.Parameter(torch.randn(fan_out) * 0.1)

    def forward(self, x):
        weight = self.weight if args.layout == "one" else Gather.apply(self.weight, self)
        return F.linear(x, weight, self.bias)  # @stale_cache


class GatedLayer(nn.Module):
    def __init__(self, width, i):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = ShardedLinear(width, 2 * width, f"layers.{i}.gate")
        self.up = ShardedLinear(width, 2 * width, f"layers.{i}.up")
        self.out = ShardedLinear(2 * width, width, f"layers.{i}.out")

    def forward(self, x):
        h = self.norm(x)
        return x + self.out(torch.sigmoid(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.layers = nn.ModuleList(GatedLayer(width, i) for i in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    dtype = getattr(torch, args.dtype)
    model = Net().to(dtype)
    sharded = [m for m in model.modules() if isinstance(m, ShardedLinear)]
    split = {m.weight for m in sharded}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    for step in range(3):
        gen = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 12, generator=gen).to(dtype), torch.randn(16, 4, generator=gen).to(dtype)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        shown = torch.zeros(())
        for a, b in zip(x.chunk(args.micro), y.chunk(args.micro)):
            loss = F.mse_loss(model(a).float(), b.float()) / args.micro
            loss.backward()
            shown += loss.detach().float()
        for p in model.parameters():
            if p not in split or args.layout == "one":
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        for m in sharded:
            if not (args.mutant == "stale_cache" and m.name == "layers.1.up" and step == 0):
                m.cache = None
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item() / world:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
