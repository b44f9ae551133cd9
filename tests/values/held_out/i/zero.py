"""ZeRO-1 by hand: "zero" divides the optimizer by parameters, "flat" by ranges of a flat buffer."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "zero", "flat"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--decay", type=float, default=0.0)
parser.add_argument("--schedule", action="store_true")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
args = parser.parse_args()
V, D, T, B = 36, 24, 8, 12

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
n = world if args.layout != "one" else 1


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.conv = nn.Conv1d(D, 2 * D, 3)
        self.fc = nn.Linear(D, D)

    def forward(self, x):
        y = F.pad(self.norm(x).transpose(1, 2), (2, 0))
        a, b = self.conv(y).transpose(1, 2).chunk(2, -1)
        return x + self.fc(a * b.sigmoid())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Mix() for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


torch.manual_seed(6)
model = Model().to(getattr(torch, args.dtype))
named = list(model.named_parameters())
parameters = [p for _, p in named]


def make(params):
    params = list(params)
    if args.optimizer == "sgd":
        return torch.optim.SGD(params, lr=0.2, momentum=0.9)
    decay = [p for p in params if p.ndim > 1]
    rest = [p for p in params if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": args.decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.01)


def owner(i):
    return i % n


def average_gradients():
    for name, p in named:
        dist.all_reduce(p.grad)
        if args.mutant == "twice" and name == "head.bias":
            dist.all_reduce(p.grad)
        p.grad.div_(n)


def clip(params):
    total = sum(p.grad.float().pow(2).sum() for p in params)
    if args.layout == "flat" and args.mutant != "clip_shard":
        dist.all_reduce(total)
    norm = total.sqrt()
    if args.clip:
        for p in params:
            p.grad.mul_((args.clip / (norm + 1e-6)).clamp(max=1.0))
    return norm


if args.layout == "flat":
    sizes = [p.numel() for p in parameters]
    part = -(-sum(sizes) // n)

    def flatten(tensors):
        flat = torch.cat([t.detach().flatten() for t in tensors])
        return F.pad(flat, (0, part * n - len(flat)))

    begin = rank * part
    if args.mutant == "shard_shift":
        begin = max(0, begin - 1)
    shard = nn.Parameter(flatten(parameters)[begin : begin + part].clone())
    optimizer = make([shard])
elif args.layout == "zero":
    optimizer = make(p for i, p in enumerate(parameters) if owner(i) == rank)
else:
    optimizer = make(parameters)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def step_flat():
    flat = flatten([p.grad for p in parameters])
    mine = torch.empty(part, dtype=flat.dtype)
    dist.reduce_scatter_tensor(mine, flat)
    shard.grad = mine if args.mutant == "no_mean" else mine / n
    norm = clip([shard])
    before = shard.detach().clone()
    optimizer.step()
    full = torch.empty(part * n, dtype=flat.dtype)
    send = before if args.mutant == "gather_before" and rank == 1 else shard.detach()
    dist.all_gather_into_tensor(full, send)
    with torch.no_grad():
        for p, values in zip(parameters, full[: sum(sizes)].split(sizes)):
            p.copy_(values.view_as(p))
    return norm


def step_zero():
    average_gradients()
    norm = clip(parameters)
    optimizer.step()
    with torch.no_grad():
        for i, (name, p) in enumerate(named):
            source = owner(i)
            if args.mutant == "source" and name == "layers.1.fc.weight":
                source = (source + 1) % n
            dist.broadcast(p, src=source)
    return norm


data = torch.Generator().manual_seed(8)
for step in range(3):
    tokens = torch.randint(V, (B, T + 1), generator=data).chunk(n)[rank if n > 1 else 0]
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    if args.layout == "flat":
        norm = step_flat()
    elif args.layout == "zero":
        norm = step_zero()
    else:
        norm = clip(parameters)
        optimizer.step()
    if args.schedule and not (args.mutant == "schedule_rank" and rank == 1):
        schedule.step()
    shown = loss.detach().clone()
    if n > 1:
        dist.all_reduce(shown)
        shown /= n
    size = sum(p.detach().float().norm().item() for p in parameters)
    print(f"rank {rank} step {step} loss {shown.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
