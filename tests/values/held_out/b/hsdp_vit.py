"""Image classifier with hybrid sharding: fully_shard on a mesh of replicas and shards, with accumulation."""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--layout", default="one", choices=["one", "hsdp", "fsdp"])
    p.add_argument("--mutant", default="none")
    p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    p.add_argument("--accumulate", type=int, default=2)
    return p.parse_args()


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width=32, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList([MixerBlock(16, width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def shard(model, args, world):
    if args.layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    for i, block in enumerate(model.blocks):
        if args.mutant == "shard_mesh_only" and i == 1:
            fully_shard(block, mesh=mesh["shard"])  # @shard_mesh_only
        else:
            fully_shard(block, mesh=mesh)
    ignored = set(model.norm.parameters()) if args.mutant == "norm_ignored" else None
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    if args.mutant == "divide_factor":
        model.blocks[0].set_gradient_divide_factor(2.0)  # the size of the shard axis  @divide_factor


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = Mixer()
    if args.dtype == "float64":
        model = model.double()
    sharded = args.layout != "one"
    if sharded:
        shard(model, args, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    amp = torch.autocast("cpu", torch.bfloat16) if args.dtype == "bfloat16" else contextlib.nullcontext()
    loss_function = nn.CrossEntropyLoss(label_smoothing=0.1)
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        images = torch.randn(16, 3, 16, 16, generator=g)
        labels = torch.randint(0, 10, (16,), generator=g)
        if args.dtype == "float64":
            images = images.double()
        images, labels = images.chunk(world)[rank], labels.chunk(world)[rank]
        total = 0.0
        for micro, (x, y) in enumerate(zip(images.chunk(args.accumulate), labels.chunk(args.accumulate))):
            last = micro == args.accumulate - 1
            if sharded:
                model.set_requires_gradient_sync(last)
            with amp:
                loss = loss_function(model(x), y) / args.accumulate
            loss.backward()  # @shard_mesh_only @norm_ignored @divide_factor
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {float(total) / world:.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


main()
