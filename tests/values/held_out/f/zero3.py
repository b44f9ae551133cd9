"""Sequence tagger with parameters sharded by hand (ZeRO-3): gathered before use, gradients reduced and scattered."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "zero3"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, BLOCKS, LENGTH, BATCH, TAGS, MICRO = 40, 32, 3, 8, 16, 12, 2


class Gather(torch.autograd.Function):
    """The full weight of a flat shard; its gradient is averaged over ranks and scattered."""

    @staticmethod
    def forward(ctx, shard, module):
        rank, world = dist.get_rank(), dist.get_world_size()
        if module.full is not None:
            return module.full  # @stale_cache
        parts = [torch.empty_like(shard) for _ in range(world)]
        dist.all_gather(parts, shard.detach())
        if args.mutant == "gather_order":
            parts = parts[rank:] + parts[:rank]  # @gather_order
        full = torch.cat(parts)  # @gather_order
        if module.keep:
            module.full = full
        return full.view_as(full)

    @staticmethod
    def backward(ctx, grad):
        rank, world = dist.get_rank(), dist.get_world_size()
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(world)[rank] / world, None


class ShardedLinear(nn.Module):
    def __init__(self, linear, keep):
        super().__init__()
        self.shape, self.keep, self.full = linear.weight.shape, keep, None
        self.weight = nn.Parameter(linear.weight.detach().flatten().chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.bias = linear.bias  # small: replicated

    def forward(self, x):
        weight = Gather.apply(self.weight, self).view(self.shape)
        return F.linear(x, weight, self.bias)  # @gather_order @stale_cache


class Dropout(nn.Module):
    """Masks of the whole batch, of which a rank takes its rows."""

    seed, rows = 0, None

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        if not args.dropout:
            return x
        g = torch.Generator().manual_seed(1000 * Dropout.seed + self.number)
        mask = torch.rand(BATCH, *x.shape[1:], generator=g) >= args.dropout
        return x * mask[Dropout.rows].to(x.dtype) / (1 - args.dropout)


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)
        self.drop = Dropout(number)

    def forward(self, x):
        x = x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.drop(self.down(F.gelu(self.up(x))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(BLOCKS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, TAGS)

    def forward(self, tokens):
        x = self.tok(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model):
    for i, block in enumerate(model.blocks):
        for name in ("mix", "up", "down"):
            setattr(block, name, ShardedLinear(getattr(block, name), keep=i == BLOCKS - 1))
    model.head = ShardedLinear(model.head, keep=False)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = Tagger().to(DTYPE)
    if args.layout == "zero3":
        shard(model)
    sharded = [m for m in model.modules() if isinstance(m, ShardedLinear)]
    owned = {m.weight for m in sharded}
    decay, rest = [], []
    for name, p in model.named_parameters():
        matrix = p.ndim >= 2 if args.mutant == "decay_ndim" else name.endswith("weight") and "norm" not in name
        (decay if matrix else rest).append(p)  # @decay_ndim
    groups = [{"params": decay, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02, eps=1e-5)
    for step in range(3):
        g = torch.Generator().manual_seed(70 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=g)
        tags = (tokens * 5 + tokens.roll(1, 1)) % TAGS
        mean = 0.0
        for micro in torch.arange(BATCH).chunk(MICRO):
            rows = micro.chunk(world)[rank]
            Dropout.seed, Dropout.rows = step, rows
            loss = F.cross_entropy(model(tokens[rows]).flatten(0, 1), tags[rows].flatten()) / MICRO
            loss.backward()
            mean = mean + loss.detach()
        for p in model.parameters():
            if p not in owned:
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizer.step()  # @decay_ndim
        optimizer.zero_grad()
        for m in sharded:
            if args.mutant != "stale_cache":
                m.full = None  # the weights have changed
        dist.all_reduce(mean)  # @stale_cache
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    if args.verify:
        total = torch.zeros((), dtype=torch.float64)
        for p in model.parameters():
            total += p.detach().double().abs().sum() / (1 if p in owned else world)
        dist.all_reduce(total)
        if rank == 0:
            print(f"sum {total.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
