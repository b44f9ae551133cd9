"""torch.distributed.pipelining with stages built by hand, and data parallel replicas of the pipeline."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "gpipe", "1f1b"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dp", type=int, default=1)
args = parser.parse_args()

FEATURES, DIM, CLASSES, LAYERS, BATCH, LENGTH, MICRO, STEPS = 12, 32, 10, 4, 16, 6, 4, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(DIM), Attention(), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.SiLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """The whole model, or the part of it that a stage keeps."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, DIM)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def keep(self, stage, stages):
        here = LAYERS // stages
        for i in range(LAYERS):
            if i // here != stage:
                del self.layers[str(i)]
        if stage > 0:
            self.stem = None
        if stage < stages - 1:
            self.norm = self.head = None
        return self

    def forward(self, x):
        if self.stem is not None:
            x = self.stem(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x).mean(1))


def loss_function(output, target):
    return F.cross_entropy(output, target)


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    model = Encoder().to(dtype)
    dp = args.dp if args.layout != "one" else 1
    stages = world // dp
    if args.layout != "one":
        mesh = init_device_mesh("cpu", (dp, stages), mesh_dim_names=("dp", "pp"))
        replica, index = mesh.get_coordinate()
        model.keep(index, stages)
        stage = PipelineStage(model, index, stages, torch.device("cpu"), group=mesh.get_group("pp"))
        kind = ScheduleGPipe if args.layout == "gpipe" else Schedule1F1B
        schedule = kind(stage, MICRO, loss_fn=loss_function, scale_grads=args.mutant != "no_scale")  # @no_scale
    else:
        replica, index = 0, 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(BATCH, LENGTH, FEATURES, generator=generator).to(dtype).chunk(dp)[replica]
        y = torch.randint(CLASSES, (BATCH,), generator=generator).chunk(dp)[replica]
        losses = []
        if args.layout == "one":
            for part, target in zip(x.chunk(MICRO), y.chunk(MICRO)):
                losses.append(loss_function(model(part), target))
                losses[-1].backward()
            for p in model.parameters():
                p.grad.div_(MICRO)
        elif index == stages - 1:
            schedule.step(*([x] if stages == 1 else []), target=y, losses=losses)  # @no_scale
        else:
            schedule.step(x) if index == 0 else schedule.step()  # @no_scale
        total = torch.stack(losses).mean().detach().float() / dp if losses else torch.zeros(())
        if dp > 1:
            for p in model.parameters():
                if args.mutant != "last_unreduced" or index < stages - 1:
                    dist.all_reduce(p.grad, group=mesh.get_group("dp"))  # @last_unreduced
                p.grad.div_(dp)
        optimizer.step()  # @last_unreduced @no_scale
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"loss {step} {total.item():.7f}", flush=True)
    check = sum((p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum() for p in model.parameters()) / dp
    dist.all_reduce(check)
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
