"""A convolutional classifier with ZeRO-1 by hand: each parameter has one owner, which updates and broadcasts it."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "zero"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32", help="or autocast")
parser.add_argument("--scaler", action="store_true")
args = parser.parse_args()
DTYPE = torch.float64 if args.dtype == "float64" else torch.float32
CHANNELS, LENGTH, BATCH, CLASSES, LAYERS = 16, 16, 24, 9, 3

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class DilatedLayer(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(4, CHANNELS)
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(CHANNELS, CHANNELS, 1)

    def forward(self, x):
        return x + self.mix(F.gelu(self.conv(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(3, CHANNELS, 1)
        self.layers = nn.ModuleList(DilatedLayer(2**i) for i in range(LAYERS))
        self.head = nn.Sequential(nn.Linear(CHANNELS, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(-1))


class ZeroOptimizer:
    """Owners are chosen greedily by size; the optimizer of a rank has its own parameters only."""

    def __init__(self, model, lr):
        sizes, self.owners = [0] * WORLD, {}
        named = dict(model.named_parameters())
        for name, p in sorted(named.items(), key=lambda item: -item[1].numel()):
            owner = sizes.index(min(sizes))
            self.owners[name] = owner
            sizes[owner] += p.numel()
        self.parameters = named
        own = [p for n, p in named.items() if self.owners[n] == RANK]
        self.inner = torch.optim.AdamW(own, lr=lr, weight_decay=0.1, eps=1e-4)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.inner, 1, gamma=0.5)

    def step(self, scaler):
        if scaler is not None:
            scaler.step(self.inner)
        else:
            self.inner.step()  # @cast @not_sent @schedule_rank0
        if not (args.mutant == "schedule_rank0" and RANK > 0):
            self.schedule.step()  # @schedule_rank0
        for name, p in self.parameters.items():
            if args.mutant == "not_sent" and name.startswith("head.") and p.ndim == 1:
                continue  # @not_sent
            if args.mutant == "cast":
                wire = p.data.bfloat16()  # @cast
                dist.broadcast(wire, self.owners[name])  # @cast
                if self.owners[name] != RANK:
                    p.data.copy_(wire)  # @cast
            else:
                dist.broadcast(p.data, self.owners[name])  # @not_sent


def main():
    torch.set_num_threads(1)
    torch.manual_seed(51)
    model = Classifier().to(DTYPE)
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = ZeroOptimizer(model, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0) if args.scaler else None
    cast = torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext()
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, 3, LENGTH, generator=g)
        y = (x[:, 0].mean(-1) * 4).round().long().clamp(-1, 1) + 1 + 3 * (x[:, 1, ::2].amax(-1).long().clamp(0, 2))
        own = slice(RANK * BATCH // WORLD, (RANK + 1) * BATCH // WORLD)
        with cast:
            logits = model(x[own].to(DTYPE))
        loss = F.cross_entropy(logits.to(DTYPE), y[own])
        model.zero_grad()
        (scaler.scale(loss) if scaler is not None else loss).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(WORLD)
        if scaler is not None:
            scaler.unscale_(optimizer.inner)
            for name, p in model.named_parameters():
                if optimizer.owners[name] != RANK:
                    p.grad.div_(scaler.get_scale())
        limit = 0.25
        if args.mutant == "clip_own":
            torch.nn.utils.clip_grad_norm_([p for n, p in model.named_parameters() if optimizer.owners[n] == RANK], limit)  # @clip_own
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)  # @clip_own
        optimizer.step(scaler)
        if scaler is not None:
            scaler.update()
        shown = loss.detach().double()
        dist.all_reduce(shown)
        if RANK == 0:
            print(f"step {step} loss {shown.item() / WORLD:.7f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        rows.append([(now**2).sum() / WORLD, ((now - initial[name]) ** 2).sum() / WORLD])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
