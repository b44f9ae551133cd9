"""Language model parallelized with torch's DTensor: tensor parallel, sequence parallel, and data parallel around it."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp", "sp", "tp_dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH, STEPS = 48, 32, 4, 2, 12, 8, 2

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.wq, self.wk, self.wv = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))  # @heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # @heads
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))  # @heads


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(DIM, 2 * DIM, bias=False)
        self.w2 = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # @replicate


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2, self.mlp = nn.LayerNorm(DIM), FeedForward()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))  # @heads
        return x + self.mlp(self.norm2(x))  # @replicate


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.output = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1])[None])  # @seed
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))  # @norm_plain


def parallelize(model, mesh):
    n = mesh.size()
    sequence = args.layout == "sp"
    there = Shard(1) if sequence else Replicate()
    plan = {
        "tok": RowwiseParallel(input_layouts=Replicate(), output_layouts=there),
        "output": ColwiseParallel(input_layouts=there, output_layouts=Replicate()),
    }
    if sequence:
        plan["pos"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=there)
        if args.mutant != "norm_plain":
            plan["norm"] = SequenceParallel()  # @norm_plain
    parallelize_module(model, mesh, plan)
    for i, layer in enumerate(model.layers):
        inside = there
        if args.mutant == "replicate" and i == 1:
            inside = Replicate()  # @replicate
        plan = {
            "attn": PrepareModuleInput(input_layouts=(there,), desired_input_layouts=(Replicate(),)),
            "attn.wq": ColwiseParallel(),
            "attn.wk": ColwiseParallel(),
            "attn.wv": ColwiseParallel(),
            "attn.wo": RowwiseParallel(output_layouts=there),
            "mlp": PrepareModuleInput(input_layouts=(inside,), desired_input_layouts=(Replicate(),)),  # @replicate
            "mlp.w1": ColwiseParallel(),
            "mlp.w3": ColwiseParallel(),
            "mlp.w2": RowwiseParallel(output_layouts=inside),  # @replicate
        }
        if sequence:
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        parallelize_module(layer, mesh, plan)
        if args.mutant != "heads":
            layer.attn.heads = HEADS // n


def average(model, group, n):
    for p in model.parameters():
        if isinstance(p.grad, DTensor):
            local = p.grad.to_local()
        else:
            local = p.grad
            if args.mutant == "dp_plain":
                continue  # @dp_plain
        dist.all_reduce(local, group=group)  # @dp_plain
        local /= n


def main():
    torch.manual_seed(2 + (RANK if args.mutant == "seed" else 0))  # @seed
    model = Model().to(DTYPE)  # @seed
    dp, dp_rank, dp_group = 1, 0, None
    if args.layout == "tp_dp":
        mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
        dp, dp_rank, dp_group = WORLD // 2, mesh.get_local_rank("dp"), mesh.get_group("dp")
        parallelize(model, mesh["tp"])
    elif args.layout != "one":
        parallelize(model, init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-4, foreach=False)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(70 + step)
        data = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g).chunk(dp)[dp_rank]
        total = 0.0
        for part in data.chunk(args.accumulate):
            logits = model(part[:, :-1]).to(WIDE)
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / args.accumulate
            loss.backward()
            total += loss.item()
        if dp > 1:
            average(model, dp_group, dp)
        optimizer.step()  # @dp_plain @norm_plain
        optimizer.zero_grad()
        if RANK == 0:
            print(f"step {step} loss {total:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
