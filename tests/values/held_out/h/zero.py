"""Classifier whose weights are fully sharded by hand: gathered for a layer, gradients summed and cut into shards."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "zero"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
FEATURES, DIM, CLASSES, BATCH, STEPS = 20, 32, 12, 24, 3


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, layer):
        if layer.full is not None:  # gathered by an earlier micro-batch
            return layer.full.detach()  # @stale
        world, rank = dist.get_world_size(), dist.get_rank()
        parts = [torch.empty_like(shard) for _ in range(world)]
        dist.all_gather(parts, shard.contiguous())  # @order
        if args.mutant == "order":  # a ring would collect them so: own part first
            parts = parts[rank:] + parts[:rank]  # @order
        layer.full = torch.cat(parts)  # @order @stale
        return layer.full.detach()  # @order

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)  # @twice
        if args.mutant == "twice":
            grad = grad / dist.get_world_size()  # @twice
        return grad.chunk(dist.get_world_size())[dist.get_rank()], None  # @twice


class Linear(nn.Linear):
    full = None
    sharded = False

    def shard(self):
        rows = self.weight.detach().chunk(dist.get_world_size())[dist.get_rank()]
        self.weight = nn.Parameter(rows.clone())
        self.sharded = True

    def forward(self, x):
        weight = Gather.apply(self.weight, self) if self.sharded else self.weight  # @order @twice @stale
        return F.linear(x, weight, self.bias)  # @order @stale @ema


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), Linear(DIM, 2 * DIM), Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))  # @order @ema


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Linear(FEATURES, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.stem(x)  # @order @ema
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # @stale


def forget(model):
    """Gathered weights are old after the optimizer's step."""
    for m in model.modules():
        if isinstance(m, Linear):
            if args.mutant == "stale" and m is model.head:
                continue  # @stale
            m.full = None


def data(step):
    g = torch.Generator().manual_seed(40 + step)
    return torch.randn(BATCH, FEATURES, generator=g).to(DTYPE), torch.randint(0, CLASSES, (BATCH,), generator=g)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Model().to(DTYPE)
    if args.layout == "zero":
        for m in model.modules():
            if isinstance(m, Linear):
                m.shard()
    replicated = [p for n, p in model.named_parameters() if "norm" in n or n.endswith("bias")]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    ema = {n: p.detach().clone() for n, p in model.named_parameters()}
    for step in range(STEPS):
        x, y = data(step)
        total = torch.zeros(())
        for rows in torch.arange(BATCH).chunk(args.accumulate):
            rows = rows.chunk(world)[rank]
            loss = F.cross_entropy(model(x[rows]).float(), y[rows], reduction="sum") / BATCH
            loss.backward()  # @twice
            total += loss.detach()
        for p in replicated:
            if args.mutant == "bias" and p.ndim == 1 and p.numel() == CLASSES:
                continue  # @bias
            dist.all_reduce(p.grad)  # @bias
        if args.clip:
            own = {id(p) for p in replicated}
            square = torch.zeros(())
            for p in model.parameters():
                if id(p) not in own:
                    square += p.grad.float().square().sum()
            dist.all_reduce(square)  # of shards
            square += sum(p.grad.float().square().sum() for p in replicated)
            scale = (args.clip / (square.sqrt() + 1e-6)).clamp(max=1.0)
            for p in model.parameters():
                p.grad.mul_(scale)
        optimizer.step()  # @bias @twice
        optimizer.zero_grad()
        forget(model)  # @stale
        with torch.no_grad():
            for n, p in model.named_parameters():
                if args.mutant == "ema" and rank > 0 and n.endswith("bias"):
                    continue  # @ema
                ema[n].lerp_(p, 0.3)  # @ema
            saved = {n: p.clone() for n, p in model.named_parameters()}
            for n, p in model.named_parameters():
                p.copy_(ema[n])  # @ema
            kept = {m: m.full for m in model.modules() if isinstance(m, Linear)}
            for m in kept:
                m.full = None
            model.eval()
            x, y = data(1000)
            rows = torch.arange(BATCH).chunk(world)[rank]
            valid = F.cross_entropy(model(x[rows]).float(), y[rows], reduction="sum") / BATCH  # @ema
            model.train()
            for m in kept:
                m.full = kept[m]
            for n, p in model.named_parameters():
                p.copy_(saved[n])
        both = torch.stack([total, valid])
        dist.all_reduce(both)
        if rank == 0:
            print(f"step {step} loss {both[0].item():.6f} valid {both[1].item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
