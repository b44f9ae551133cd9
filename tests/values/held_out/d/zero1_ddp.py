"""DistributedDataParallel with a communication hook, sharded optimizer states (ZeRO-1), autocast and GradScaler."""
import argparse
import contextlib
import copy
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ddp", "zero1"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32", help="also: autocast")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--hook", action="store_true")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--optimizer", default="adamw", choices=["adamw", "sgd"])
args = parser.parse_args()

FEATURES, DIM, CLASSES, LAYERS, BATCH, STEPS = 20, 32, 10, 3, 24, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.gate = nn.Linear(DIM, 2 * DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Zero1(torch.optim.AdamW):
    """Each rank has the states of every world-th parameter, updates them, and sends them to the others."""

    def __init__(self, groups, **settings):
        super().__init__(groups, **settings)
        every = [p for group in self.param_groups for p in group["params"]]
        self.owner = {p: i % dist.get_world_size() for i, p in enumerate(every)}

    def step(self, closure=None):
        others = {p: p.grad for p, owner in self.owner.items() if owner != dist.get_rank()}
        for p in others:
            p.grad = None
        super().step()
        for p, gradient in others.items():
            p.grad = gradient
        for i, (p, owner) in enumerate(self.owner.items()):
            if not (args.mutant == "last_not_sent" and i == len(self.owner) - 1):
                dist.broadcast(p.data, owner)  # @last_not_sent


def hook(state, bucket):
    """Mean over ranks, by a sum in float32."""
    buffer = bucket.buffer().float()
    if args.mutant != "hook_sum":
        buffer = buffer / dist.get_world_size()  # @hook_sum
    future = dist.all_reduce(buffer, async_op=True).get_future()  # @hook_sum
    return future.then(lambda done: done.value()[0].to(bucket.buffer().dtype))  # @hook_sum


def make_optimizer(model):
    decay, rest = [], []
    for name, p in model.named_parameters():
        name = name if args.mutant == "wrapped_names" else name.removeprefix("module.")  # @wrapped_names
        skipped = name.startswith("norm") or name.startswith("layers") and name.split(".")[2] == "norm"  # @wrapped_names
        (rest if skipped else decay).append(p)  # @wrapped_names
    groups = [{"params": decay, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}]
    if args.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return (Zero1 if args.layout == "zero1" else torch.optim.AdamW)(groups, lr=1e-2, eps=1e-5)


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    dtype = torch.float32 if args.dtype == "autocast" else getattr(torch, args.dtype)
    model = Net().to(dtype)
    if args.layout != "one":
        model = DistributedDataParallel(model)
        if args.hook:
            model.register_comm_hook(None, hook)
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.scaler)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(BATCH, FEATURES, generator=generator).to(dtype).chunk(world)[rank]
        y = torch.randint(CLASSES, (BATCH,), generator=generator).chunk(world)[rank]
        casts = torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext()
        with casts:
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # @hook_sum
        if args.clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)  # @hook_sum @wrapped_names @last_not_sent @rank0_states
        scaler.update()
        optimizer.zero_grad()
        if args.resume and step == 1:
            states = copy.deepcopy(optimizer.state_dict())
            optimizer = make_optimizer(model)
            if args.mutant != "rank0_states" or rank == 0:
                optimizer.load_state_dict(states)  # @rank0_states
        mean = loss.detach().float()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"loss {step} {mean.item() / world:.7f}", flush=True)
    check = sum((p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum() for p in model.parameters())
    dist.all_reduce(check)
    if rank == 0:
        print(f"check {check.item() / world:.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
