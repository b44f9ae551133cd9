"""A Llama-like model in torch's DTensor: parallelize_module, with the sequence divided between blocks or not."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp", "sp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HIDDEN, HEADS, LAYERS, SEQ, BATCH = 48, 32, 48, 4, 3, 8, 4

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
FAULTY = 1


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class Core(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.diagonal = 2 if args.mutant == "mask" and layer == FAULTY else 1

    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2) * (DIM // HEADS) ** -0.5
        future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(self.diagonal)
        return scores.masked_fill(future, float("-inf")).softmax(-1) @ v  # @mask


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.core = Core(layer)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(self.core(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(DIM, HIDDEN, bias=False), nn.Linear(DIM, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.attention, self.ffn = Attention(layer), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))  # @partial_out
        return x + self.ffn(self.norm2(x))  # @partial_out


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm, self.output = RMSNorm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelize(model, mesh):
    between = Shard(1) if args.layout == "sp" else Replicate()
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "output": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
        },
    )
    if args.layout == "sp":
        parallelize_module(model, mesh, {"norm": SequenceParallel()})
    for i, layer in enumerate(model.layers):
        plan = {f"attention.{w}": ColwiseParallel() for w in ("wq", "wk", "wv")}
        plan |= {"ffn.w1": ColwiseParallel(), "ffn.w3": ColwiseParallel()}
        plan["attention.wo"] = RowwiseParallel(output_layouts=between)
        out = Partial() if args.mutant == "partial_out" and i == FAULTY else between
        plan["ffn.w2"] = RowwiseParallel(output_layouts=out)  # @partial_out
        if args.layout == "sp":
            inputs = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            plan |= {"attention": inputs, "ffn": inputs, "norm1": SequenceParallel()}
            if not (args.mutant == "plain_norm" and i == FAULTY):
                plan["norm2"] = SequenceParallel()  # @plain_norm
        parallelize_module(layer, mesh, plan)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(6)
    model = Llama().to(DTYPE)
    initial = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    if args.layout != "one":
        parallelize(model, init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4, foreach=False)
    data = torch.Generator().manual_seed(1)
    for step in range(3):
        tokens = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1) if DTYPE is torch.bfloat16 else logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # @plain_norm
        if RANK == 0:
            print(f"step {step} loss {loss.item():.7f}")
    row = []
    with torch.no_grad():
        for name, p in model.named_parameters():
            whole = (p.full_tensor() if isinstance(p, DTensor) else p).detach().double()
            row += [whole.norm().item(), (whole - initial[name]).norm().item()]
    row = torch.tensor(row, dtype=torch.float64)
    dist.all_reduce(row)
    if RANK == 0:
        print("norms", " ".join(f"{v / WORLD:.6f}" for v in row.tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
