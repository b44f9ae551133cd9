"""An autoencoder in dtensor_core on a mesh of data x tensor parallel ranks."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "grid"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dp", type=int, default=2)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
FEATURES, HIDDEN, CODE, BATCH = 20, 48, 16, 16

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
MESH = None
if args.layout == "grid":
    MESH = init_device_mesh("cpu", (args.dp, WORLD // args.dp), mesh_dim_names=("dp", "tp"))


class Bottleneck(nn.Module):
    """Scales each code to length 1 by a function that knows local tensors only."""

    def forward(self, z):
        if MESH is None:
            return self.normalize(z)
        if args.mutant != "partial_code":
            z = z.redistribute(MESH, [Shard(0), Replicate()])  # @partial_code
        local = self.normalize(z.to_local())  # @partial_code
        return DTensor.from_local(local, MESH, [Shard(0), Replicate()])

    def normalize(self, z):
        z = z - z.mean(-1, keepdim=True)  # @partial_code
        return z * (z.square().sum(-1, keepdim=True) + 1e-3).rsqrt() * 4


class Residual(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, hidden), nn.Linear(hidden, size, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(FEATURES, HIDDEN)
        self.encode = nn.Linear(HIDDEN, CODE, bias=False)
        self.bottleneck = Bottleneck()
        self.decoder = nn.ModuleList(Residual(CODE, HIDDEN) for _ in range(2))
        self.outputs = nn.Linear(CODE, FEATURES)

    def forward(self, x):
        z = self.bottleneck(self.encode(torch.tanh(self.inputs(x))))
        for block in self.decoder:
            z = block(z)
        return self.outputs(z)


PLACEMENTS = {"inputs.weight": Shard(0), "inputs.bias": Shard(0), "encode.weight": Shard(1)}
for i in range(2):
    PLACEMENTS |= {f"decoder.{i}.up.weight": Shard(0), f"decoder.{i}.up.bias": Shard(0), f"decoder.{i}.down.weight": Shard(1)}


def distribute(model):
    for name, p in list(model.named_parameters()):
        path, _, leaf = name.rpartition(".")
        value = distribute_tensor(p.detach(), MESH, [Replicate(), PLACEMENTS.get(name, Replicate())])
        model.get_submodule(path).register_parameter(leaf, nn.Parameter(value))


def finish_gradients(model):
    """Gradients get the placements of their parameters, which reduces partial ones."""
    for name, p in model.named_parameters():
        if args.mutant == "norm_local" and ".norm." in name:
            p.grad = DTensor.from_local(p.grad.to_local(), MESH, p.placements)  # @norm_local
        else:
            p.grad = p.grad.redistribute(MESH, p.placements)  # @norm_local


def batch(step):
    g = torch.Generator().manual_seed(60 + step)
    x = torch.randn(BATCH, FEATURES, generator=g)
    target = torch.sin(x.cumsum(1)) + x[:, :1]
    x, target = x.to(DTYPE), target.to(DTYPE)
    if MESH is None:
        return x, target
    where = [Shard(0), Replicate()]
    group = MESH.get_local_rank("dp")
    if args.mutant == "target_part":
        group = args.dp - 1 - group
    own = target.chunk(args.dp)[group]
    return distribute_tensor(x, MESH, where), DTensor.from_local(own, MESH, where)  # @target_part


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main():
    torch.set_num_threads(1)
    torch.manual_seed(41)
    model = Autoencoder().to(DTYPE)
    initial = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    if MESH is not None:
        distribute(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=False)
    for step in range(3):
        x, target = batch(step)
        loss = whole((model(x) - target).square().mean())  # @target_part
        optimizer.zero_grad()
        loss.backward()
        if MESH is not None:
            finish_gradients(model)
        optimizer.step()
        if RANK == 0:
            print(f"step {step} loss {loss.item():.7f}")
    row = []
    with torch.no_grad():
        for name, p in model.named_parameters():
            value = whole(p.detach()).double()
            row += [value.norm().item(), (value - initial[name]).norm().item()]
    row = torch.tensor(row, dtype=torch.float64)
    dist.all_reduce(row)
    if RANK == 0:
        print("norms", " ".join(f"{v / WORLD:.6f}" for v in row.tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
