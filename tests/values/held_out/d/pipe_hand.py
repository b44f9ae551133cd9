"""Pipeline parallel by hand (GPipe and 1F1B) of a language model with a tied embedding."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "gpipe", "1f1b"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--schedule", action="store_true")
args = parser.parse_args()

VOCABULARY, DIM, LAYERS, BATCH, LENGTH, MICRO, STEPS = 40, 32, 4, 8, 10, 4, 3
SHAPE = BATCH // MICRO, LENGTH, DIM


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.mix = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.mix(h.cumsum(1) / torch.arange(1, LENGTH + 1, dtype=x.dtype)[:, None])
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Stage(nn.Module):
    def __init__(self, index, stages):
        super().__init__()
        self.first, self.last = index == 0, index == stages - 1
        tok, pos = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        blocks = [Block() for _ in range(LAYERS)]
        here = LAYERS // stages
        self.tok, self.pos = (tok, pos) if self.first else (None, None)
        self.layers = nn.ModuleDict({str(i): blocks[i] for i in range(index * here, index * here + here)})
        if self.last:
            self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
            self.head.weight = tok.weight

    def forward(self, x):
        if self.first:
            x = self.tok(x) + self.pos.weight
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x)) if self.last else x


class Pipe:
    """Activations travel to the next rank, gradients to the previous one."""

    def __init__(self, stage, dtype):
        self.stage, self.dtype, self.saved, self.works = stage, dtype, [], []
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.buffer = torch.empty(SHAPE, dtype=dtype)
        self.loss = torch.zeros(())

    def forward(self, inputs, targets):
        x = inputs
        if not self.stage.first:
            x = self.buffer if args.mutant == "aliased" else torch.empty(SHAPE, dtype=self.dtype)  # @aliased
            dist.recv(x, self.rank - 1)  # @aliased
            x = x.data.requires_grad_()
        y = self.stage(x)  # @aliased
        if self.stage.last:
            y = F.cross_entropy(y.flatten(0, 1), targets.flatten())
            self.loss += y.detach().float() / MICRO
            y = y / MICRO
        else:
            self.works.append(dist.isend(y.detach().contiguous(), self.rank + 1))
        self.saved.append((x, y))

    def backward(self):
        if args.mutant == "lifo" and not self.stage.last:
            x, y = self.saved.pop()  # @lifo
        else:
            x, y = self.saved.pop(0)
        gradient = None
        if not self.stage.last:
            gradient = torch.empty(SHAPE, dtype=self.dtype)
            dist.recv(gradient, self.rank + 1)  # @lifo
        y.backward(gradient)  # @lifo @aliased
        if not self.stage.first:
            self.works.append(dist.isend(x.grad, self.rank - 1))  # @aliased

    def run(self, inputs, targets):
        warmup = MICRO if args.layout == "gpipe" else self.world - self.rank - 1
        todo = list(zip(inputs.chunk(MICRO), targets.chunk(MICRO)))
        for i in range(MICRO + warmup):
            if i < MICRO:
                self.forward(*todo[i])
            if i >= warmup:
                self.backward()
        for work in self.works:
            work.wait()
        self.works = []


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    stage = Stage(rank, world).to(dtype)
    ends = dist.new_group([0, world - 1]) if world > 1 else None
    pipe = Pipe(stage, dtype)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=5e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS if args.schedule else 10 ** 6)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        pipe.run(tokens[:, :-1], tokens[:, 1:])
        if world > 1 and args.mutant != "tied_unreduced":
            if stage.first:
                dist.all_reduce(stage.tok.weight.grad, group=ends)  # @tied_unreduced
            elif stage.last:
                dist.all_reduce(stage.head.weight.grad, group=ends)  # @tied_unreduced
        optimizer.step()  # @tied_unreduced
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(pipe.loss)
        if rank == 0:
            print(f"loss {step} {pipe.loss.item():.7f}", flush=True)
        pipe.loss = torch.zeros(())
    check = torch.zeros((), dtype=torch.float64)
    for name, p in stage.named_parameters():
        if world == 1 or not name.startswith("head"):
            check += (p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum()
    dist.all_reduce(check)
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
