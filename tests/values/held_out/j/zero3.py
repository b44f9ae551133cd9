"""ZeRO-3 by hand: matrices are sharded over their rows, gathered when they are used, and their gradients scattered.

Vectors are small: each rank has all of them, and their gradients are averaged after the backward pass.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, DEPTH, ROWS, LENGTH, STEPS = 64, 32, 3, 8, 10, 3

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "zero"])
parser.add_argument("--dtype", default="float32")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--keep", action="store_true", help="keep gathered matrices until the optimizer's step")
parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adam"])
parser.add_argument("--mutant", default="")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
dtype = getattr(torch, args.dtype)


class Gather(torch.autograd.Function):
    """The whole matrix from its shards; backward, the shard of the mean of all ranks' gradients."""

    @staticmethod
    def forward(ctx, shard, owner):
        if owner.kept is not None:
            return owner.kept.detach()
        full = shard.new_empty((shard.shape[0] * world, shard.shape[1]))
        dist.all_gather_into_tensor(full, shard.detach().contiguous())
        if args.keep:
            owner.kept = full
        return full.detach()

    @staticmethod
    def backward(ctx, gradient):
        part = gradient.new_empty((gradient.shape[0] // world, gradient.shape[1]))
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part / world, None


class Matrix(nn.Module):
    """A module with one matrix, weight, of which each rank has the rows of its shard."""

    def __init__(self, rows, columns, scale, name):
        super().__init__()
        self.kept = None
        full = torch.randn(rows, columns) * scale
        if args.layout == "zero":
            place = (rank + 1) % world if args.mutant == "wrong_shard" and name == "down" else rank
            full = full.chunk(world)[place].clone()
        self.weight = nn.Parameter(full)

    def matrix(self):
        return Gather.apply(self.weight, self) if args.layout == "zero" else self.weight


class Linear(Matrix):
    def __init__(self, inputs, outputs, name):
        super().__init__(outputs, inputs, inputs**-0.5, name)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.02)

    def forward(self, x):
        return F.linear(x, self.matrix(), self.bias)


class Embedding(Matrix):
    def __init__(self, rows, columns):
        super().__init__(rows, columns, 1.0, "embed")

    def forward(self, tokens):
        return F.embedding(tokens, self.matrix())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up, self.down = Linear(2 * DIM, 4 * DIM, "up"), Linear(4 * DIM, DIM, "down")

    def forward(self, x):
        past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype).view(1, -1, 1)
        return x + self.down(F.gelu(self.up(torch.cat([self.norm(x), past], -1))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = Linear(DIM, VOCAB, "head")

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


torch.manual_seed(3)
model = Model().to(dtype)
matrices = [p for p in model.parameters() if p.ndim == 2]
vectors = [p for p in model.parameters() if p.ndim == 1]
kind = torch.optim.SGD if args.optimizer == "sgd" else torch.optim.Adam
options = dict(lr=0.1, momentum=0.9) if args.optimizer == "sgd" else dict(lr=2e-3)
optimizer = kind([{"params": matrices}, {"params": vectors}], **options)


def reduce_vectors():
    for p in vectors:
        dist.all_reduce(p.grad)
        if args.mutant != "vectors_summed":
            p.grad /= world


def gradient_norm():
    sharded = torch.stack([p.grad.float().square().sum() for p in matrices]).sum()
    if args.layout == "zero":
        dist.all_reduce(sharded)
    small = torch.stack([p.grad.float().square().sum() for p in vectors]).sum()
    return (sharded + small).sqrt()


for step in range(STEPS):
    draw = torch.Generator().manual_seed(500 + step)
    batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
    total = torch.zeros(())
    for micro in batch.chunk(args.accumulate):
        mine = micro.chunk(world)[rank]
        logits = model(mine[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), mine[:, 1:].flatten()) / args.accumulate
        loss.backward()
        total += loss.detach()
    if args.layout == "zero":
        reduce_vectors()
    norm = gradient_norm()
    if args.clip:
        for p in model.parameters():
            p.grad.mul_((args.clip / (norm + 1e-6)).clamp(max=1.0))
    optimizer.step()
    for p in matrices if args.mutant == "zero_grad" else model.parameters():
        p.grad = None
    for module in model.modules():
        if isinstance(module, Matrix) and not (args.mutant == "stale" and module is model.head):
            module.kept = None
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item() / world:.6f} norm {norm.item():.6f}", flush=True)

length = torch.stack([p.detach().float().square().sum() for p in matrices]).sum()
dist.all_reduce(length)
if rank == 0:
    print(f"matrices {length.item():.6f} vectors {sum(p.detach().float().square().sum().item() for p in vectors):.6f}")
dist.destroy_process_group()
