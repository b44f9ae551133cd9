"""An autoencoder on a grid (dp, tp) of dtensor_core, distributed by distribute_module and distribute_tensor."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import dtensor_core as dt
from dtensor_core import Partial, Replicate, Shard

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="plain", help="plain, or DPxTP")
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()


class Gate(nn.Module):
    """Scales features. Has a kernel of its own for local tensors: each rank of tp has a part of the features."""

    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, dim))
        self.shift = nn.Parameter(torch.linspace(-0.2, 0.2, dim))

    def forward(self, x):
        if not isinstance(x, dt.DTensor):
            return torch.tanh(x * self.scale + self.shift)
        mesh = x.device_mesh
        grads = [Shard(0), Partial()]
        if args.mutant == "input_grad":
            grads = [Shard(0), Replicate()]
        local = x.redistribute(mesh, [Shard(0), Replicate()]).to_local(grad_placements=grads)
        over_dp = [Partial(), Shard(0)]
        scale = self.scale.to_local(grad_placements=over_dp)
        if args.mutant == "scale_grad":
            scale = self.scale.to_local(grad_placements=[Replicate(), Shard(0)])
        shift = self.shift.to_local(grad_placements=over_dp)
        local = local.chunk(mesh.size(1), -1)[mesh.get_local_rank("tp")]
        return dt.DTensor.from_local(torch.tanh(local * scale + shift), mesh, [Shard(0), Shard(1)])


class Coder(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x):
        return self.norm(self.down(torch.nn.functional.gelu(self.up(x))))


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.gate, self.decoder = Coder(24, 48, 16), Gate(16), Coder(16, 48, 24)

    def forward(self, x):
        return self.decoder(self.gate(self.encoder(x)))


def partition(name, module, mesh):
    shards = {"up": {"weight": 0, "bias": 0}, "down": {"weight": 1}, "gate": {"scale": 0, "shift": 0}}
    for key, p in list(module.named_parameters(recurse=False)):
        dim = shards.get(name.split(".")[-1], {}).get(key)
        placements = [Replicate(), Replicate() if dim is None else Shard(dim)]
        module.register_parameter(key, nn.Parameter(dt.distribute_tensor(p.detach(), mesh, placements)))


dist.init_process_group("gloo")
torch.manual_seed(41)
dtype = getattr(torch, args.dtype)
model = AutoEncoder().to(dtype)
mesh = None
if args.layout != "plain":
    dp, tp = map(int, args.layout.split("x"))
    mesh = dt.init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    model = dt.distribute_module(model, mesh, partition)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, eps=1e-4)
data = torch.randn(4, 16, 24).to(dtype)


def loss_of(x):
    if mesh is not None:
        x = dt.distribute_tensor(x, mesh, [Shard(0), Replicate()])
    loss = (model(x) - x).square().mean()
    return loss.full_tensor() if mesh is not None else loss


for step in range(3):
    optimizer.zero_grad()
    loss = loss_of(data[step])
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(f"FINAL {dist.get_rank()} {loss_of(data[3]).item():.6f}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
