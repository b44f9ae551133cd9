"""Language model in a pipeline by hand: micro-batches by send and recv, all forward then all backward, tied embedding."""
import argparse
import time
from collections import deque

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "pipe"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH, MICRO = 40, 32, 4, 6, 8, 16, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2 = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """The whole model, or, after `cut`, a stage of it."""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.tok.weight, std=0.2)
        self.head.weight = self.tok.weight

    def cut(self, rank, world):
        size = LAYERS // world
        for i in range(LAYERS):
            if i // size != rank:
                del self.layers[str(i)]
        if rank > 0:
            self.tok = None
        if rank < world - 1:
            self.norm = self.head = None
        return self

    def forward(self, x):
        if self.tok is not None:
            x = self.tok(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


class Pipeline:
    def __init__(self, model, rank, world):
        self.model, self.rank, self.first, self.last = model, rank, rank == 0, rank == world - 1
        self.buffer = torch.empty(BATCH // MICRO, LENGTH, DIM, dtype=DTYPE)

    def receive(self, source):
        buffer = self.buffer if args.mutant == "one_buffer" else torch.empty_like(self.buffer)
        dist.recv(buffer, source)  # @one_buffer
        return buffer

    def step(self, tokens, target):
        waiting, mean = deque(), torch.zeros((), dtype=torch.float32)
        for x, y in zip(tokens.chunk(MICRO), target.chunk(MICRO)):
            if not self.first:
                x = self.receive(self.rank - 1).detach().requires_grad_()
            out = self.model(x)
            if self.last:
                out = F.cross_entropy(out.flatten(0, 1), y.flatten()) / MICRO
                mean += out.detach()
            else:
                dist.send(out.detach(), self.rank + 1)
            waiting.append((x, out))
        for _ in range(MICRO):
            if args.mutant == "lifo" and not self.last:
                x, out = waiting.pop()
            else:
                x, out = waiting.popleft()
            if self.last:
                out.backward()  # @one_buffer
            else:
                grad = torch.empty_like(out)
                dist.recv(grad, self.rank + 1)  # @lifo
                out.backward(grad)  # @lifo
            if not self.first:
                dist.send(x.grad, self.rank - 1)
        return mean


def whole(model, tokens, target):
    mean = torch.zeros((), dtype=torch.float32)
    for x, y in zip(tokens.chunk(MICRO), target.chunk(MICRO)):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / MICRO
        loss.backward()
        mean += loss.detach()
    return mean


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = Model().to(DTYPE)
    if args.layout == "pipe":
        model.cut(rank, world)
        pipeline, ends = Pipeline(model, rank, world), dist.new_group([0, world - 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(3):
        g = torch.Generator().manual_seed(90 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        optimizer.zero_grad()
        if args.layout == "pipe":
            loss = pipeline.step(tokens[:, :-1], tokens[:, 1:])
            tied = model.tok if rank == 0 else model.head
            if tied is not None and args.mutant != "tied_apart":
                dist.all_reduce(tied.weight.grad, group=ends)  # @tied_apart
        else:
            loss = whole(model, tokens[:, :-1], tokens[:, 1:])
        optimizer.step()  # @tied_apart
        dist.broadcast(loss, world - 1)
        if rank == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
    if args.verify:
        total = sum(p.detach().double().abs().sum() for p in model.parameters())
        if args.layout == "pipe":
            if rank == world - 1:
                total -= model.head.weight.detach().double().abs().sum()
            dist.all_reduce(total)
        if rank == 0:
            print(f"sum {total.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
