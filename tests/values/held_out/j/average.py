"""Averages of weights: over time (an exponential average, or one of the last steps), and over ranks (local)."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

INPUTS, DIM, CLASSES, DEPTH, STEPS = 20, 32, 12, 3, 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(INPUTS, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.head = nn.Linear(DIM, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.scale


def swa_mean(average, parameter, count):
    return average + (parameter - average) / (count + 1)


def swa_late(average, parameter, count):
    return average + (parameter - average) / (count + 2)


@torch.no_grad()
def blend(ema, model, decay):
    for old, new in zip(ema.parameters(), model.parameters()):
        old.mul_(decay).add_(new, alpha=1 - decay)


@torch.no_grad()
def average_ranks(model, world):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world


def reduce_gradients(model, mutant):
    parameters = model.parameters()
    if mutant == "body_only":
        parameters = list(model.stem.parameters()) + list(model.layers.parameters())
    for p in parameters:
        dist.all_reduce(p.grad)


@torch.no_grad()
def evaluate(step, ema, swa, dtype):
    """The losses of the averages on a held out batch, which is the same on all ranks."""
    draw = torch.Generator().manual_seed(5000 + step)
    held_out = torch.randn(8, INPUTS, generator=draw).to(dtype)
    targets = torch.randint(CLASSES, (8,), generator=draw)
    for name, other in (("ema", ema), ("swa", swa if step > 1 else None)):
        if other is not None:
            measured = F.cross_entropy(other(held_out).float(), targets)
            dist.all_reduce(measured)
            if dist.get_rank() == 0:
                print(f"  {name} {measured.item() / dist.get_world_size():.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "ddp", "hand", "local"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ema", type=float, default=0.0)
    parser.add_argument("--swa", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--mutant", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, args.dtype)

    torch.manual_seed(13)
    model = Model().to(dtype)
    ema = copy.deepcopy(model) if args.ema else None
    swa = AveragedModel(model, avg_fn=swa_late if args.mutant == "swa_count" else swa_mean) if args.swa else None
    trained = DistributedDataParallel(model) if args.layout == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)

    for step in range(STEPS):
        if step:
            evaluate(step, ema, swa, dtype)
        draw = torch.Generator().manual_seed(90 + step)
        inputs = torch.randn(args.batch, INPUTS, generator=draw)
        labels = torch.randint(CLASSES, (args.batch,), generator=draw)
        x, y = inputs.tensor_split(world)[rank].to(dtype), labels.tensor_split(world)[rank]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            logits = trained(x)
        loss = F.cross_entropy(logits.float(), y, reduction="sum") / args.batch
        if args.layout in ("ddp", "local"):
            (loss * world).backward()
        else:
            loss.backward()
        if args.layout == "hand":
            reduce_gradients(model, args.mutant)
        if args.clip:
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if args.layout == "local":
            average_ranks(model, world)
        if ema is not None and (rank == 0 or args.mutant != "ema_first"):
            blend(ema, model, args.ema)
        if swa is not None and step >= 1:
            swa.update_parameters(model)

        total = loss.detach().clone()
        dist.all_reduce(total)
        line = f"step {step} loss {total.item():.6f}"
        if args.clip:
            line += f" norm {norm.item():.6f}"
        if rank == 0:
            print(line, flush=True)
    evaluate(STEPS, ema, swa, dtype)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
