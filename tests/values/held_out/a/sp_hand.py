"""Sequence parallel by hand: norms and residuals on a part of the sequence, matrices on a part of the features."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

VOCAB, D, H, S, B = 40, 32, 4, 16, 2


def gather(x):  # [b, s / n, d] -> [b, s, d]
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def scatter_sum(x, shift=0):  # [b, s, d] -> [b, s / n, d]
    x = x.contiguous().clone()
    dist.all_reduce(x)
    world = dist.get_world_size()
    return x.chunk(world, 1)[(dist.get_rank() + shift) % world].contiguous()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gather(x)

    @staticmethod
    def backward(ctx, g):
        return scatter_sum(g)


class ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shift):
        return scatter_sum(x, shift)

    @staticmethod
    def backward(ctx, g):
        return gather(g), None


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x):
        x = Gather.apply(x)
        q, k, v = (m(x).unflatten(-1, (-1, D // H)).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return ScatterSum.apply(self.o(y), 0)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(D, 48, bias=False), nn.Linear(D, 48, bias=False)
        self.down = nn.Linear(48, D, bias=False)
        self.shift = 0

    def forward(self, x):
        x = Gather.apply(x)
        y = self.down(F.silu(self.gate(x)) * self.up(x))
        return ScatterSum.apply(y, self.shift)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn = RMSNorm(D), Attention()
        self.ln2, self.mlp = RMSNorm(D), SwiGLU()

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(S, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.ln_f, self.lm_head = RMSNorm(D), nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids, positions):
        x = self.embed(ids) + self.pos(positions)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


def shard_(model):
    rank, world = dist.get_rank(), dist.get_world_size()
    for name, module in model.named_modules():
        dim = {"q": 0, "k": 0, "v": 0, "gate": 0, "up": 0, "o": 1, "down": 1}.get(name.split(".")[-1])
        if dim is not None:
            module.weight = nn.Parameter(module.weight.detach().chunk(world, dim)[rank].clone())
            module.weight.sharded = True


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--layout", choices=["one", "sp"], default="one")
    cli.add_argument("--mutant", default="none")
    cli.add_argument("--dtype", default="float32")
    opts = cli.parse_args()
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(7)
    model = Model().to(getattr(torch, opts.dtype))
    shard_(model)
    if opts.mutant == "scatter_order":
        model.layers[1].mlp.shift = 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    part = slice(rank * S // world, (rank + 1) * S // world)
    positions = torch.arange(S)[part]
    if opts.mutant == "positions":
        positions = torch.arange(S // world)
    for step in range(3):
        ids = torch.randint(VOCAB, (B, S + 1), generator=torch.Generator().manual_seed(100 + step))
        logits = model(ids[:, :-1][:, part], positions)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:][:, part].flatten(), reduction="sum") / (B * S)
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            if getattr(p, "sharded", False):
                continue
            if opts.mutant == "norm_grad" and name == "layers.1.ln2.weight":
                continue
            dist.all_reduce(p.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"{step}: {total.item():.6f}")
    print(f"FINAL {rank} {model.layers[1].ln2.weight.double().norm().item() + total.item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
