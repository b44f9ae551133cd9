"""Tagger of sequences with parameters and activations as DTensors of dtensor_core, on a mesh of data and tensor parallel ranks."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "mesh"])
parser.add_argument("--dp", type=int, default=2)
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()

FEATURES, DIM, HEADS, INNER, LAYERS, TAGS, BATCH, LENGTH = 24, 32, 4, 96, 2, 12, 8, 10
HEAD = DIM // HEADS
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
DTYPE = getattr(torch, args.dtype)
mesh = None
if args.layout == "mesh":
    mesh = init_device_mesh("cpu", (args.dp, WORLD // args.dp), mesh_dim_names=("dp", "tp"))
HIDDEN = [Shard(0), Replicate()]  # of [batch, length, dim]
INSIDE = [Shard(0), Shard(2)]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.zeros(DIM))

    def forward(self, x):
        return F.layer_norm(x, (DIM,), self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.gain = nn.Parameter(torch.full((HEAD,), HEAD**-0.5))  # of each feature of a head's queries
        self.out = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        q, k, v, gain = self.query(x), self.key(x), self.value(x), self.gain
        if mesh:
            q, k, v = q.to_local(), k.to_local(), v.to_local()
            gradient = [Replicate(), Partial()] if args.mutant == "gain" else [Partial(), Partial()]  # @gain
            gain = gain.to_local(grad_placements=gradient)  # @gain
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in (q, k, v))
        weights = ((q * gain) @ k.transpose(-1, -2)).softmax(-1)  # @gain
        y = (weights @ v).transpose(1, 2).flatten(2)
        if mesh:
            y = DTensor.from_local(y, mesh, INSIDE)
        y = self.out(y)
        return y.redistribute(mesh, HIDDEN) if mesh else y


class FeedForward(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.up, self.down = nn.Linear(DIM, INNER), nn.Linear(INNER, DIM, bias=False)

    def forward(self, x):
        h = F.gelu(self.up(x))  # @reversed
        if mesh is None:
            return self.down(h)
        # a kernel of its own, which knows only tensors
        y = F.linear(h.to_local(), self.down.weight.to_local(grad_placements=[Partial(), Shard(1)]))
        kind = Replicate() if args.mutant == "partial" and self.index == 1 else Partial()  # @partial
        return DTensor.from_local(y, mesh, [Shard(0), kind]).redistribute(mesh, HIDDEN)  # @partial


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm1, self.attention = Norm(), Attention()
        self.norm2, self.ff = Norm(), FeedForward(index)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(FEATURES, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm, self.tags = Norm(), nn.Linear(DIM, TAGS, bias=False)

    def forward(self, x):
        x = self.project(x)
        for block in self.blocks:
            x = block(x)
        return self.tags(self.norm(x))


def placements(name):
    if name.endswith(("query.weight", "key.weight", "value.weight", "up.weight", "up.bias")):
        return [Replicate(), Shard(0)]
    if name.endswith(("out.weight", "down.weight")):
        return [Replicate(), Shard(1)]
    return [Replicate(), Replicate()]


torch.manual_seed(53)
model = Tagger().to(DTYPE)
if mesh:
    for name, parameter in list(model.named_parameters()):
        owner, _, attribute = name.rpartition(".")
        value = distribute_tensor(parameter.data, mesh, placements(name))
        if args.mutant == "reversed" and name == "blocks.0.ff.up.weight":
            parts = parameter.data.chunk(mesh.size(1))
            value = DTensor.from_local(parts[-1 - mesh.get_local_rank("tp")].clone(), mesh, placements(name))  # @reversed
        setattr(model.get_submodule(owner), attribute, nn.Parameter(value))
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, foreach=False)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
whole = lambda t: t.full_tensor() if mesh else t

for step in range(3):
    generator = torch.Generator().manual_seed(10 + step)
    inputs = torch.randn(BATCH, LENGTH, FEATURES, generator=generator).to(DTYPE)
    tags = torch.randint(TAGS, (BATCH, LENGTH), generator=generator)
    if mesh:
        inputs = distribute_tensor(inputs, mesh, HIDDEN)
        tags = tags.chunk(args.dp)[mesh.get_local_rank("dp")]
    logits = model(inputs)  # @reversed
    if mesh:
        logits = logits.to_local()
    logits = logits.flatten(0, 1).to(torch.promote_types(DTYPE, torch.float32))
    loss = F.cross_entropy(logits, tags.flatten(), reduction="sum") / (BATCH * LENGTH)
    loss.backward()
    optimizer.step()
    schedule.step()
    total = loss.detach()
    if mesh:
        total = DTensor.from_local(total, mesh, [Partial(), Replicate()]).full_tensor()
    size = sum(whole(p.detach()).double().abs().sum() for p in model.parameters())
    slope = sum(whole(p.grad).double().abs().sum() for p in model.parameters())
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {total.item():.7f} sum {size.item():.7f} grad {slope.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
